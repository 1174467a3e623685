"""Scripts and tests of others, unmodified, from checkouts that the environment names:

    HOROVOD_SOURCE=/path/of/horovod TF_BENCHMARKS_SOURCE=/path/of/tensorflow/benchmarks \\
        python -m pytest tests/tf/horovod/test_fetched.py

Horovod's tests need cloudpickle, mock and parameterized from PyPI. What was found is in
docs/measurements/2026-11-26-horovods-scripts.md.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
HOROVOD, BENCHMARKS = (
    Path(os.environ.get(name, "/none")) for name in ("HOROVOD_SOURCE", "TF_BENCHMARKS_SOURCE")
)
needs_horovod = pytest.mark.skipif(not HOROVOD.exists(), reason="set HOROVOD_SOURCE to a checkout")
needs_benchmarks = pytest.mark.skipif(
    not BENCHMARKS.exists(), reason="set TF_BENCHMARKS_SOURCE to a checkout"
)
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
PACKAGES = ("cloudpickle", "mock", "parameterized")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]

# The others of examples/ ask for what TensorFlow 2.21 or Keras has no more, on one process, too.
EXAMPLES = (
    "tensorflow2/tensorflow2_keras_mnist.py",
    "tensorflow2/tensorflow2_mnist.py",
)


@needs_horovod
@pytest.mark.parametrize("example", EXAMPLES)
def test_horovods_examples(launch, tmp_path, example):
    script = HOROVOD / "examples" / example
    run = launch(
        HERE / "run_example.py", np=2, args=[script], env=LEGACY, cwd=tmp_path, timeout=400
    ).check()
    first, second = run.results
    assert first["weights"] and first["weights"] == second["weights"]
    losses = first["losses"]
    assert len(losses) >= 2 and losses[-1] < losses[0], losses
    assert any(name.startswith("checkpoint") for name in first["files"])


# By name, why they fail: docs/horovod.md's "What is otherwise".
EXPECTED: dict[str, str] = {}


@needs_horovod
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("test_tensorflow.py", "not gpu and (allreduce or compression or object)"),
        ("test_tensorflow.py", "not gpu and (allgather or broadcast)"),
        ("test_tensorflow.py", "not gpu and (alltoall or reducescatter)"),
        ("test_tensorflow.py", "not gpu and (tape or parallel or syncbn or elastic or rank_op)"),
        ("test_adasum_tensorflow.py", "not gpu"),
        ("test_tensorflow2_keras.py", "not gpu"),
    ],
)
def test_horovods_tests(launch, file, words):
    path = HOROVOD / "test/parallel" / file
    run = launch(
        HERE / "run_tests.py",
        np=2,
        args=[path, "-k", words],
        env=LEGACY,
        cwd=path.parent,
        timeout=1200,
    ).check()
    for found in run.results:
        assert found["failed"].keys() <= EXPECTED.keys(), found["failed"]
        assert found["passed"]


def _steps(stdout: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^\d+\timages/sec: .*\t([\d.]+|inf|nan)$",
                                               stdout, re.M)]  # fmt: skip


def benchmark(launch: Any, ranks: int, model: str, *options: str, **env: str) -> Any:
    folder = BENCHMARKS / "scripts/tf_cnn_benchmarks"
    arguments = [
        *("--device=cpu", "--data_format=NHWC", f"--model={model}", "--batch_size=8"),
        *("--num_batches=20", "--num_warmup_batches=0", "--display_every=1"),
        *("--data_name=cifar10", "--tf_random_seed=7", "--init_learning_rate=0.001", *options),
    ]
    script = folder / "tf_cnn_benchmarks.py"
    return launch(script, np=ranks, args=arguments, env={**LEGACY, **env}, timeout=400).check()


@needs_benchmarks
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "rmsprop", "adam"])
@pytest.mark.parametrize("model", ["resnet20", "alexnet"])
def test_tf_cnn_benchmarks(launch, model, optimizer):
    """2 ranks that are given the same made-up images take one process's 20 steps."""
    options = (f"--optimizer={optimizer}",)
    alone = _steps(benchmark(launch, 0, model, *options).stdout[0])
    run = benchmark(launch, 2, model, *options)
    assert len(alone) == 20 and all(map(math.isfinite, alone)) and len(set(alone)) > 10
    for stdout in run.stdout:
        assert _steps(stdout) == pytest.approx(alone, rel=1e-2)
    assert "total images/sec: " in run.stdout[0]


@needs_benchmarks
def test_tf_cnn_benchmarks_with_horovod(launch):
    run = benchmark(launch, 2, "resnet20", "--optimizer=sgd", "--variable_update=horovod")
    losses = _steps(run.stdout[0])
    assert len(losses) == 20 and all(map(math.isfinite, losses))
    assert "horovod is tensorflow.mpi's here" in run.stderr[0]
    assert "total images/sec: " in run.stdout[0]
