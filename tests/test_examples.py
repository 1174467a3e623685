"""Runs the examples as a user would, on a small generated data set: 1 process and 2 ranks."""

from __future__ import annotations

import gzip
import importlib.util
import re
import struct
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
DEADLINE = 180


def write_idx(path: Path, array: np.ndarray) -> None:
    """Writes MNIST's file format: magic, sizes, bytes."""
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), compresslevel=1))


@pytest.fixture(name="keras_home", scope="session")
def keras_home_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A KERAS_HOME whose fashion-mnist is ten bright columns, one per class, with noise.

    One label in ten is wrong, so that no model gets all of them right, and equal models are told
    apart.
    """
    home = tmp_path_factory.mktemp("home") / ".keras"
    folder = home / "datasets" / "fashion-mnist"
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    # Odd, so that 2 ranks get parts of different sizes.
    for name, count in (("train", 6001), ("t10k", 1001)):
        labels = random.integers(10, size=count)
        images = random.integers(100, size=(count, 28, 28))
        for image, label in zip(images, labels):
            image[:, 2 * label + 4 : 2 * label + 6] += 150
        labels = np.where(random.random(count) < 0.1, random.integers(10, size=count), labels)
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", labels)
    return home


def verdicts(outputs: list[str]) -> list[str]:
    return [line for text in outputs for line in text.splitlines() if line.startswith("test acc")]


def accuracy(line: str) -> float:
    found = re.match(r"test accuracy (\d\.\d+)", line)
    assert found, line
    return float(found[1])


def of_one_process_and_two_ranks(launch, script, args, env) -> tuple[str, str]:
    """The verdicts of one process and of 2 ranks, which must be good and equal on both ranks."""
    alone = launch(EXAMPLES / script, np=0, args=args, env=env, timeout=DEADLINE).check()
    (line,) = verdicts(alone.stdout)
    assert accuracy(line) > 0.8, alone.report()
    ranks = launch(EXAMPLES / script, np=2, args=args, env=env, timeout=DEADLINE).check()
    first, second = verdicts(ranks.stdout)
    assert first == second, ranks.report()
    assert accuracy(first) > 0.8, ranks.report()
    return line, first


@pytest.mark.full
@pytest.mark.parametrize(
    "script, args",
    [
        ("lenet_v1.py", ["--steps", "60", "--batch-size", "64"]),
        ("custom_loop_v2.py", ["--epochs", "2", "--batch-size", "64"]),
    ],
)
def test_a_plain_script_ends_with_the_same_model_on_all_ranks(launch, keras_home, script, args):
    # With TF_MPI_SHARD=off each rank draws its own initial values and batches, so equal verdicts
    # mean one model.
    env = {"KERAS_HOME": str(keras_home), "TF_MPI_SHARD": "off"}
    of_one_process_and_two_ranks(launch, script, args, env)


@pytest.mark.full  # `./install.sh --demo` compares the first one
@pytest.mark.parametrize(
    "script", ["fashion_mnist_keras.py", "compiled_train_step.py", "tf_keras_fit.py"]
)
def test_a_keras_script_equals_one_process(launch, keras_home, script):
    if script.startswith("tf_keras") and importlib.util.find_spec("tf_keras") is None:
        pytest.skip("tf_keras is not installed")
    # tf_keras reads $HOME/.keras.
    env = {"KERAS_HOME": str(keras_home), "HOME": str(keras_home.parent)}
    args = ["--epochs", "3", "--batch-size", "64"]
    line, first = of_one_process_and_two_ranks(launch, script, args, env)
    if script == "fashion_mnist_keras.py":  # seeded and smooth, so even the digits agree
        loss, other = (float(text.split()[-1]) for text in (line, first))
        assert loss == pytest.approx(other, rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [0, 2])
def test_partition_prints_once_and_reaches_its_accuracy(launch, keras_home, ranks):
    env = {"KERAS_HOME": str(keras_home)}
    args = ["--epochs", "3", "--batch-size", "64"]
    run = launch(EXAMPLES / "partition.py", np=ranks, args=args, env=env, timeout=DEADLINE).check()
    (line,) = verdicts(run.stdout)
    assert line.endswith(f"on {max(ranks, 1)} ranks")
    assert accuracy(line) > 0.8, run.report()
    assert [len(text.splitlines()) for text in run.stdout[1:]] == [0] * (len(run.stdout) - 1)


def test_the_plain_scripts_contain_no_mpi_code():
    plain = ["lenet_v1.py", "custom_loop_v2.py", "fashion_mnist_keras.py"]
    for script in [*plain, "compiled_train_step.py", "tf_keras_fit.py"]:
        assert not re.search(
            r"\bmpi\b|\brank|horovod", (EXAMPLES / script).read_text(), re.IGNORECASE
        )
