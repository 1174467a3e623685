"""Lines and errors of fit, tested in this process with made-up models and ranks."""

from __future__ import annotations

import collections
import contextlib
import re
import signal
import sys
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest

from extras import load


@pytest.fixture(name="fit", scope="module")
def fit_fixture() -> Any:
    return load("tensorflow.mpi._src.keras.fit")


def test_a_stop_while_ranks_agree_to_go_on_counts_the_next_time(fit, monkeypatch):
    model = types.SimpleNamespace(stop_training=False)
    asked = []

    def any_rank(label: str, stops: bool) -> bool:
        asked.append(stops)
        model.stop_training = True  # by the handler of a signal
        return stops

    monkeypatch.setattr(fit.control_plane, "any_rank", any_rank)
    fit._agree_on_stop("fit 1", model)
    assert not model.stop_training
    fit._agree_on_stop("fit 1", model)
    assert model.stop_training and asked == [False, True]


class Metric:
    name = "recall"


MODEL = types.SimpleNamespace(name="net", built=True)


def test_different_builds_in_evaluate_are_an_error(fit, monkeypatch):
    call = types.SimpleNamespace(kind="evaluate", label="evaluate 1", unbuilt=True, model=MODEL)
    monkeypatch.setattr(fit.calls, "innermost", lambda: call)
    monkeypatch.setattr(fit, "_trainable_digests", lambda model: [1])
    monkeypatch.setattr(fit.control_plane, "headers", lambda label, mine: [mine, [2]])
    words = r"evaluate\(\) built model 'net' with different weights on each rank"
    with pytest.raises(RuntimeError, match=words) as error:
        fit.call_ends(types.SimpleNamespace(model=MODEL))
    assert "Build the model before that call, with model.build(input_shape)" in str(error.value)


def test_a_weight_changed_on_one_rank_is_an_error(fit):
    weight = types.SimpleNamespace(name="kernel")
    words = "fit 1: weight 'kernel' differs between ranks 0 and 1 by up to 0.5 (relative, for"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        fit._check_rounding(weight, [np.zeros(2), np.array([0.0, 0.5])], "fit 1")
    fit._check_rounding(weight, [np.zeros(2), np.full(2, 1e-6)], "fit 1")
    words = "fit 1: weight 'kernel' is NaN on rank 1 where it is a number on rank 0"
    with pytest.raises(RuntimeError, match=words):
        fit._check_numbers(weight, [np.zeros(2), np.array([0.0, np.nan])], "fit 1")
    fit._check_numbers(weight, [np.full(2, np.nan)] * 2, "fit 1")


def test_metrics_on_one_rank_only_are_an_error():
    logs = load("tensorflow.mpi._src.keras.logs")
    words = r"evaluate 1: rank 1 and rank 0 have different metrics \(recall\), so there is no value"
    with pytest.raises(ValueError, match=words):
        logs._check_same("evaluate 1", [["accuracy"], ["accuracy", "recall"]])
    with pytest.raises(ValueError, match="rank 1 and rank 0 have metrics in another order"):
        logs._check_same("evaluate 1", [["accuracy", "recall"], ["recall", "accuracy"]])


def test_different_programs_are_an_error(monkeypatch):
    program = load("tensorflow.mpi._src.keras.program")
    lines: list[str] = []
    monkeypatch.setattr(program.log, "once", lines.append)
    units, seen = ("the number of layers", "2"), ("attribute seen of layer 'own'", "3")
    key = f"own {program.describe._ATTRIBUTE} seen"
    program._tell("fit", MODEL, [{key: seen}, {key: (seen[0], "4")}])
    assert lines == [
        "fit() of model 'net': attribute seen of layer 'own' is 3 on rank 0 and 4 on rank 1; each "
        "rank keeps its own"
    ]
    with pytest.raises(ValueError, match="the number of layers is 2 on rank 0 and 3 on") as error:
        program._tell("fit", MODEL, [{"layers": units}, {"layers": (units[0], "3")}])
    assert "All ranks must run the same program. Random draws" in str(error.value)
    assert "To run a different program on each rank, set TF_MPI_ENABLE=0" in str(error.value)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([], "is read before the loop reaches the end of its data"),
        (None, "has state other than sums over samples, or is updated both in and outside"),
    ],
)
def test_a_metric_of_a_part_is_reported(monkeypatch, states, words):
    loop_metrics = load("tensorflow.mpi._src.keras.loop_metrics")
    lines: list[str] = []
    monkeypatch.setattr(loop_metrics.log, "once", lambda line, **_: lines.append(line))
    metric = Metric()
    updated: Any = collections.defaultdict(lambda: types.SimpleNamespace(states=states))
    monkeypatch.setattr(loop_metrics, "_noted", updated)
    loop_metrics._say_of_part(metric)
    assert lines[0].startswith(f"the metric 'recall' {words}")
    assert "its value covers only this rank's part of the data" in lines[0]


def test_values_of_numpys_extensions_are_combined(monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    plane = load("tensorflow.mpi._src.messaging.control_plane")
    monkeypatch.setattr(
        plane.collectives, "run", lambda kind, data, label, **_: np.concatenate([data, data])
    )
    sent: list[Any] = [np.array([1.5, -2], ml_dtypes.bfloat16), np.array(["a"]), np.int64(3)]
    for _, received in plane.gather("label", [], sent):
        for one, other in zip(sent, received, strict=True):
            assert other.dtype == one.dtype and np.array_equal(one, other)
    logs = load("tensorflow.mpi._src.keras.logs")
    wanted = [True, False, True]
    assert [logs._is_number(np.asarray(one).dtype) for one in sent] == wanted


def test_lines_after_a_sigterm(monkeypatch):
    on_sigterm = load("tensorflow.mpi._src.keras.on_sigterm")
    lines: list[str] = []
    monkeypatch.setattr(on_sigterm.log, "say", lines.append)
    monkeypatch.setattr(on_sigterm, "_end", lambda: None)
    monkeypatch.setattr(on_sigterm.calls, "in_fit", lambda: False)
    on_sigterm._on_signal(15, None)
    assert lines[0] == "SIGTERM outside of fit: nothing is saved"
    monkeypatch.setenv("TF_MPI_SAVE_ON_SIGTERM", "/tmp")
    other = types.SimpleNamespace(current_thread=lambda: 1, main_thread=lambda: 2)
    monkeypatch.setattr(on_sigterm, "threading", other)
    on_sigterm.install()
    assert lines[-1] == (
        "TF_MPI_SAVE_ON_SIGTERM has no effect: tensorflow was imported on another thread than the "
        "main thread. Import it there"
    )
    monkeypatch.undo()
    monkeypatch.setattr(on_sigterm.log, "say", lines.append)
    monkeypatch.setenv("TF_MPI_SAVE_ON_SIGTERM", "/tmp")
    monkeypatch.setattr(on_sigterm.signal, "getsignal", lambda number: signal.SIG_IGN)
    on_sigterm.install()
    assert lines[-1] == (
        "TF_MPI_SAVE_ON_SIGTERM has no effect: the script handles SIGTERM. Save the model in that "
        "handler, or remove it"
    )


def test_a_keras_whose_gradients_are_not_averaged_is_an_error(monkeypatch):
    optimizers = load("tensorflow.mpi._src.keras.optimizers")
    version, backend = "3.9.0", "tensorflow"
    monkeypatch.setattr(optimizers.hooking, "used", lambda _: lambda: backend)
    monkeypatch.setattr(optimizers.hooking, "version_of", lambda _: version)
    why = optimizers._unsupported.__wrapped__
    assert why().startswith("Keras 3.9.0 is older than 3.10, so its gradients would not be")
    version, backend = "3.12.0", "jax"
    assert why().startswith(
        "Keras runs on the backend jax, whose gradients tensorflow.mpi does not"
    )
    assert "Set KERAS_BACKEND=tensorflow" in why()
    backend = "tensorflow"
    assert why() is None


@pytest.fixture(name="averaging")
def averaging_fixture(monkeypatch) -> Any:
    """keras/optimizers.py, with an average that doubles gradients."""
    optimizers = load("tensorflow.mpi._src.keras.optimizers")
    monkeypatch.setattr(optimizers.hooks, "active", True)
    monkeypatch.setattr(optimizers.gradients, "intercept_in_trace", lambda grads: False)
    monkeypatch.setattr(optimizers, "_unsupported", lambda: None)
    monkeypatch.setattr(optimizers.scope, "already_averaged", contextlib.nullcontext)
    monkeypatch.setattr(
        optimizers, "_averages_of_replica", lambda _, grads, *__: [2 * one for one in grads]
    )
    return optimizers


def test_gradients_may_be_passed_by_name(averaging):
    for wrap in (averaging.averaging_pairs, averaging.averaging_tf_keras):
        update = wrap(lambda self, grads_and_vars, name=None: [*grads_and_vars, name])
        assert update(None, grads_and_vars=zip([1, 2], "ab"), name="c") == [(2, "a"), (4, "b"), "c"]
    update = averaging.averaging_lists(lambda self, grads, trainable_variables: grads)
    assert update(None, trainable_variables=["a"], grads=[1]) == [2]


def test_variables_may_be_an_iterator(averaging):
    """The average reads it before the optimizer does, which would find it empty and not train."""

    def apply(optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
        return list(zip(grads, trainable_variables, strict=True))

    update = averaging.averaging_lists(apply)
    assert update(None, iter([1, 2]), iter("ab")) == [(2, "a"), (4, "b")]
    assert update(None, [1, 2], trainable_variables=iter("ab")) == [(2, "a"), (4, "b")]


@pytest.mark.parametrize(
    ("batches", "env", "eager", "hosts", "words"),
    [
        (2, {}, True, False, "its virtual batches are made of each rank's samples"),
        (None, {"TF_MPI_SYNC_BATCHNORM": "0"}, True, False, "TF_MPI_SYNC_BATCHNORM=0"),
        (
            None,
            {"TF_MPI_SHARD": "off"},
            True,
            False,
            "the script gives each rank its data. To normalize",
        ),
        (
            None,
            {},
            False,
            False,
            "a Session runs it. To normalize by the whole batch, set TF_MPI_SYNC_B",
        ),
        (None, {}, True, True, "averages of tensors on GPUs pass through the hosts here. To norm"),
        (None, {}, True, False, ""),
    ],
)
def test_batch_norm_of_a_part_is_reported(monkeypatch, batches, env, eager, hosts, words):
    batch_norm = load("tensorflow.mpi._src.keras.batch_norm")
    v1 = types.SimpleNamespace(executing_eagerly_outside_functions=lambda: eager)
    tensorflow = types.SimpleNamespace(compat=types.SimpleNamespace(v1=v1))
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setattr(batch_norm.averaging, "pass_through_hosts", lambda: hosts)
    for name in ("TF_MPI_SYNC_BATCHNORM", "TF_MPI_SHARD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    why = batch_norm._why_not(types.SimpleNamespace(virtual_batch_size=batches), asked=False)
    assert why.startswith(words) and bool(why) == bool(words)


def test_a_package_without_a_hooked_name_is_an_error(monkeypatch):
    hooking = load("tensorflow.mpi._src.interpose.hooking")
    monkeypatch.setattr(hooking, "last_tested", lambda package: f"{package}==3.12.0")
    monkeypatch.setattr(hooking, "version_of", lambda package: "9.0")
    monkeypatch.setitem(hooking.LAST_TESTED, "keras", "3.12.0")
    error = str(hooking._lost("keras.src.trainers of", "keras", "Trainer.fit"))
    assert error.startswith("keras.src.trainers of keras 9.0 has no Trainer.fit, which tensor")
    assert "install keras==3.12.0, the newest tested version, or set TF_MPI_ENABLE=0" in error
    monkeypatch.undo()
    assert hooking.version_of("no_such_package") == "of an unknown version"


def test_a_variable_that_differs_on_a_rank_is_named(monkeypatch):
    check = load("tensorflow.mpi._src.variables.replica_check")
    monkeypatch.setattr(check.group, "size", 2)
    mine, theirs = np.array([1.0, 2.0], np.float32), np.array([1.0, 3.0], np.float32)
    monkeypatch.setattr(check, "_hash", lambda data, *_: int(data.view(np.float32)[1]))
    monkeypatch.setattr(check.control_plane, "headers", lambda label, own: [[0, [2]], [1, [3]]])
    blocks = [(0, [mine.view(np.uint8)]), (1, [theirs.view(np.uint8)])]
    monkeypatch.setattr(check.control_plane, "gather", lambda *_: blocks)
    replicas = types.SimpleNamespace(names=["kernel"], steps=8, agreed=4, checked=8)
    gathered = np.zeros((2, check._HEADER + 1), np.int64)
    gathered[:, 0], gathered[:, check._HEADER] = [0, 1], [2, 3]
    text = check._message(replicas, 0, gathered, lambda: [mine])
    assert text.startswith("rank 1/2 (or rank 0: there is no majority): the variable 'kernel' ")
    assert "differs from rank 0: element [1] is 3.0 on rank 1, and 2.0 on rank 0" in text
    assert "The checks up to step 4 of these variables found no difference" in text


def test_a_layer_that_normalizes_by_a_part_is_reported(fit, monkeypatch):
    batch_norm = load("tensorflow.mpi._src.keras.batch_norm")
    lines: list[str] = []
    monkeypatch.setattr(batch_norm.log, "once", lambda line, **_: lines.append(line))
    monkeypatch.setattr(batch_norm.group, "size", 2)
    monkeypatch.setattr(batch_norm.scope, "has_own_samples", lambda: True)
    monkeypatch.setattr(batch_norm, "_why_not", lambda *_: "a Session runs it")
    layer = types.SimpleNamespace(name="norm")
    assert not batch_norm._is_of_all_ranks(layer)
    assert lines == [
        "layer 'norm', in a custom training loop, normalizes by the moments of each rank's part of "
        "the batch, and its moving averages drift apart; other layers may, too: a Session runs it"
    ]


def test_arrays_are_described_by_shape():
    describe = load("tensorflow.mpi._src.keras.describe")
    assert describe.plain(np.zeros((2, 3))).startswith("an array of shape [2, 3] (")


def test_a_layer_whose_number_or_tensor_has_changed_is_described_anew():
    describe = load("tensorflow.mpi._src.keras.describe")

    class Tensor:
        _numpy_internal = None

        def ref(self) -> Any:
            return self

    layer = types.SimpleNamespace(weight=float("0.5"), mean=Tensor(), unknown=float("nan"))
    before = describe.identity(layer)
    assert describe.identity(layer) == before
    for _ in range(10):  # CPython uses the memory of a freed object for the next one
        layer.weight += 0.25
        assert describe.identity(layer) != before
    layer.weight = 0.5
    assert describe.identity(layer) == before
    for _ in range(10):
        layer.mean = None
        layer.mean = Tensor()
        assert describe.identity(layer) != before


def test_a_model_is_described_by_its_class(monkeypatch):
    describe = load("tensorflow.mpi._src.keras.describe")
    monkeypatch.setattr(describe, "_layers", lambda _: [])
    monkeypatch.setattr(describe.adapters, "is_keras_layer", lambda _: True)
    assert describe.of_model(Metric())[0] == ("model", "the model's class", "Metric")


def test_variables_that_a_rank_lacks_are_logged(monkeypatch):
    states = load("tensorflow.mpi._src.variables.states")
    said: list[str] = []
    monkeypatch.setattr(states.log, "debug", said.append)
    monkeypatch.setattr(states.group, "rank", 0)
    monkeypatch.setattr(states.control_plane, "digest", lambda value: value)
    theirs = [{"kernel": [1]}, 0]
    monkeypatch.setattr(states.control_plane, "headers", lambda label, mine: [mine, theirs])
    monkeypatch.setattr(states.control_plane, "broadcast_arrays", lambda label, values: values)
    own = [
        types.SimpleNamespace(key=key, large=None, read=lambda: 1, mark=lambda: None)
        for key in ("kernel", "step")
    ]
    assert states.synchronize("start of fit 1", own)
    assert said[0] == "start of fit 1: not on all ranks, so not changed: step"


def test_a_rank_that_has_waited_says_so(monkeypatch):
    initial_broadcast = load("tensorflow.mpi._src.variables.initial_broadcast")
    missed = types.SimpleNamespace(tfmpi_missed=lambda: 1)
    monkeypatch.setattr(initial_broadcast.c_api, "load", lambda: missed)
    assert initial_broadcast.changed() == "waited while the others trained"
    monkeypatch.setattr(initial_broadcast, "_changed", "load_weights")
    assert initial_broadcast.changed() == "load_weights"


def test_a_gradient_taken_before_a_session_ran_is_an_error(monkeypatch):
    script_gradients = load("tensorflow.mpi._src.average.script_gradients")
    monkeypatch.setitem(sys.modules, "tensorflow.python.framework", types.SimpleNamespace(ops=None))
    monkeypatch.setattr(script_gradients.naming, "variable_trained", lambda graph, name: name)
    op = types.SimpleNamespace(graph=types.SimpleNamespace(_tf_mpi_ran=3))
    taken = types.SimpleNamespace(op=op, variables=["kernel"], version=2, is_average=False)
    words = "the gradient of 'kernel' was taken before a Session ran this graph, and reaches an upd"
    with pytest.raises(RuntimeError, match=words) as error:
        script_gradients._become_average(taken)
    assert "Build the whole training operation before the first run" in str(error.value)


def test_a_second_derivative_of_the_fused_kernel_is_an_error(monkeypatch):
    training = load("tensorflow.mpi._src.tf_keras.training")
    tensorflow = mock.MagicMock()
    ones = np.ones((4, 2), np.float32)
    tensorflow.cast = tensorflow.reshape = lambda value, *_: value
    tensorflow.size = np.size
    tensorflow.raw_ops.FusedBatchNormV3.return_value = mock.Mock(
        batch_mean=ones[0], batch_variance=ones[0]
    )
    refused: list[str] = []
    tensorflow.raw_ops.PreventGradient = lambda input, message: refused.append(message)

    def differentiated(function: Any) -> Any:
        def call(x: Any) -> Any:
            values, gradient = function(x)
            gradient(ones[0], ones[0])
            return values

        return call

    tensorflow.custom_gradient = differentiated
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setattr(training, "_along", lambda channels, *_: channels)
    training._moments_of_part(ones, "NC")
    (text,) = refused
    assert text.startswith("batch normalization over ranks by the fused kernel has no second")
    assert text.endswith("give the layer fused=False")


def test_ranks_that_share_a_gpu_are_reported(monkeypatch):
    gpus = load("tensorflow.mpi._src.gpu.gpus")
    said: list[str] = []
    monkeypatch.setattr(gpus.log, "say", said.append)
    monkeypatch.setattr(gpus, "_is_for_gpus", lambda: True)
    monkeypatch.setattr(gpus, "_numa", lambda _: "0")
    monkeypatch.setattr(gpus.c_api, "gpus", lambda: [("0000:01", "H100")])
    monkeypatch.setattr(gpus.control_plane, "headers", lambda label, mine: [mine, mine])
    monkeypatch.setattr(gpus.group, "rank", 0)
    monkeypatch.setattr(gpus.config, "grow_gpu_memory", lambda: True)
    gpus._assign_gpus(sys)
    assert said == [
        "2 ranks share H100 at 0000:01; each allocates its memory as needed. One rank per GPU is "
        "faster"
    ]


def test_lines_about_the_ranks_gpus(monkeypatch):
    gpus = load("tensorflow.mpi._src.gpu.gpus")
    facts = {"host": "a", "cores": 8, "gpus": [("0000:01", "H100", "0")]}
    assert gpus._line(1, facts, None) == "rank 1 on a, 8 cores: none"
    assert gpus._line(1, facts, 0) == "rank 1 on a, 8 cores: H100 at 0000:01, NUMA node 0"
