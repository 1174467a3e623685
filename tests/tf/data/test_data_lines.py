"""The lines about a rank's data, tested in this process with made-up pipelines."""

from __future__ import annotations

import sys
import time
import types
import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytest

from extras import load


@pytest.fixture(name="feeds", scope="module")
def feeds_fixture() -> Any:
    return load("tensorflow.mpi._src.data.feeds")


@pytest.fixture(name="said")
def said_fixture(feeds: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines passed to log.once."""
    said: list[str] = []
    monkeypatch.setattr(feeds.log, "once", lambda line, *_, **__: said.append(line))
    return said


def test_a_nan_that_a_batch_does_not_change_is_no_change():
    python_batches = load("tensorflow.mpi._src.data.python_batches")

    class Dataset:
        fill_value = np.nan
        made = 0

        def __getitem__(self, index: int) -> Any:
            self.made += index
            return np.zeros(3)

    watched = python_batches.Watched(Dataset())
    watched[0]
    assert watched.changed == []
    watched[1]
    assert watched.changed == ["its attribute 'made'"]


class Warns:
    def get_config(self) -> int:
        warnings.warn("of get_config", stacklevel=1)
        return 1


def test_python_shows_a_warning_once_although_others_are_ignored():
    """warnings.simplefilter makes Python forget which ones it has shown."""
    import tensorflow as tf
    from tensorflow.python.data.util import structure

    packing = load("tensorflow.mpi._src.data.packing")
    describe = load("tensorflow.mpi._src.keras.describe")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for leaf in (tf.TensorSpec([]), structure.NoneTensorSpec()):
            warnings.warn("of the script", stacklevel=1)
            assert packing.encode_spec((leaf,)) == packing.encode_spec((leaf,))
            assert describe._config(Warns()) == 1
    assert [str(one.message) for one in shown] == ["of the script"]


def test_different_arrays_are_reported_with_remedies(feeds, said):
    feeds.streams._warn_of_different_data("fit", "arrays")
    assert said[0].startswith("fit: the ranks have different arrays. All of them train and")
    assert "call tf.mpi.own_data() before that, or set TF_MPI_SHARD=off" in said[0]


def test_different_numbers_of_batches_are_reported(feeds):
    words = (
        "fit: rank 0 has 3 batches of 4 or 8 samples, rank 1 has an unknown number of batches. "
        "Give all ranks the same data"
    )
    with pytest.raises(ValueError, match=words):
        feeds.streams._check_amounts("fit", [[3, [4, 8]], [None, None]])


def test_a_map_that_draws_in_order_is_reported_with_a_remedy(feeds, said, monkeypatch):
    determinism = feeds.streams.determinism
    made_by_python: list[str] = []
    monkeypatch.setattr(determinism, "draws_in_order", lambda _: "augment")
    monkeypatch.setattr(determinism, "is_made_by_python", lambda _: bool(made_by_python))
    feeds.streams._warn_of_ordered_draws("fit", None)
    assert said[0].startswith("fit: map 'augment' draws random numbers sample by sample, so rank 0")
    assert "With num_parallel_calls=tf.data.AUTOTUNE in that map" in said[0]
    made_by_python.append("the ranks would still not share the work")
    feeds.streams._warn_of_ordered_draws("fit", None)
    assert len(said) == 1


def test_python_that_yields_other_data_than_rank_0s_is_reported(feeds, said):
    import numpy as np

    note = feeds.streams._note_other_elements("fit")
    assert note(np.zeros(2), np.zeros(2)) and not said
    assert not note(np.zeros(2), np.ones(2))
    assert said[0].startswith("fit: this rank's Python code yields different data than rank 0's")


@pytest.mark.parametrize("on_model", [False, True])
def test_a_scripts_own_call_of_its_step_has_all_its_arguments(feeds, on_model):
    class Model:
        def train_step(self, *args: Any, **kwargs: Any) -> Any:
            return args, kwargs

        test_step = predict_step = train_step

    model = Model()
    if on_model:
        for name in feeds.plan.STEPS.values():
            setattr(model, name, getattr(model, name))
    feeds.wrap_steps(model)
    for name in feeds.plan.STEPS.values():
        step = getattr(model, name)
        assert hasattr(step, "_tf_mpi_step")
        assert step([1], "sgd", rate=2) == (([1], "sgd"), {"rate": 2})
        assert step(inputs=[1]) == ((), {"inputs": [1]})
        assert step() == ((), {})
        assert step(feeds.batch_shard.EvenShard([1])) == (([1],), {})
        assert step(data=feeds.batch_shard.EvenShard([1])) == ((), {"data": [1]})


def wall(feeds: Any, monkeypatch: Any, name: str, why: str | None, is_map: bool = False) -> Any:
    dataset = types.SimpleNamespace(_inputs=lambda: [], _functions=lambda: [])
    selection = feeds.selection
    monkeypatch.setattr(selection.transformations, "name", lambda _: name)
    monkeypatch.setattr(selection.transformations, "is_map", lambda _: is_map)
    monkeypatch.setattr(selection.transformations, "is_filled_file", lambda _: False)
    monkeypatch.setattr(selection, "_function_name", lambda _: "'decode'")
    found = types.SimpleNamespace(
        divided=[], walls=[types.SimpleNamespace(dataset=dataset, why=why)]
    )
    selection._report_walls(dataset, found)


@pytest.mark.parametrize(
    ("name", "why", "words", "remedy"),
    [
        ("padded_batch", None, "pads to the longest sample of a batch", "pad to a fixed size"),
        (
            "cache",
            None,
            "is filled with all samples, by each rank into its own",
            "use cache(), which holds samples",
        ),
        ("sort", None, "needs every sample before it", "map single samples"),
        ("map", "checks a whole batch (Assert)", "checks a whole batch (Ass", "map single samples"),
    ],
)
def test_the_reason_why_every_rank_does_all_work_is_reported(
    feeds, said, monkeypatch, name, why, words, remedy
):
    wall(feeds, monkeypatch, name, why, is_map=name == "map")
    shown = {"map": "map 'decode'", "cache": "cache(file)"}.get(name, f"{name}()")
    assert said[0].startswith(f"input pipeline: {shown} {words}")
    assert f"To divide more, {remedy}" in said[0]
    assert "every rank does all the work before it ('decode'); only what follows is" in said[0]


def batches(feeds: Any, **facts: Any) -> Any:
    """A PyDataset that has been inspected."""
    python_batches = feeds.python_batches
    watched = {"digests": [1], "changed": [], "drawn": [], "draws": False}
    pooled = {"_pooled": False, "_workers": 1, "_length": lambda: 3}
    made = object.__new__(python_batches.Batches)
    given = {key: value for key, value in facts.items() if key not in watched}
    more = {key: value for key, value in facts.items() if key in watched}
    vars(made).update(_watched=types.SimpleNamespace(**watched | more), **pooled | given)
    return made


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"digests": []}, "made no batch that the ranks could compare"),
        (
            {"changed": ["its attribute 'seen'"]},
            "changes its attribute 'seen' when it makes a batch",
        ),
        (
            {"_pooled": True, "_length": lambda: None},
            "has workers and no length, so it continues in the next epoch where it stopped",
        ),
        ({}, None),
    ],
)
def test_the_reason_why_every_rank_makes_all_batches_is_given(feeds, facts, words):
    assert batches(feeds, **facts).why_not() == words


def test_an_error_of_another_rank_names_that_rank(feeds):
    """It has the same type if possible, and says which rank had it."""
    failures = feeds.streams.failures
    message = failures._message(ValueError("no such file"))
    ended = np.zeros(1, np.uint8)  # the end of another rank's data
    words = message.view(np.int64)
    numbers = [np.concatenate([words, np.zeros(others, np.int64)]) for others in range(8)]
    for gathered in (message, np.concatenate([ended, message]), *numbers):
        text = failures._decode_failure(gathered)
        assert text.decode().startswith("rank 0/1 has stopped: ValueError: no such file")


class Dataset:
    """Replaces tf.data's."""

    element_spec = "TensorSpec(shape=())"


def pretend(monkeypatch: Any, **parts: Any) -> Any:
    """Makes `import tensorflow` return a module with only these parts."""
    made = types.SimpleNamespace(**parts)
    monkeypatch.setitem(sys.modules, "tensorflow", made)
    return made


def test_shard_refuses_what_it_cannot_split(feeds, monkeypatch):
    shard = load("tensorflow.mpi._src.data.dataset_shard")
    pretend(monkeypatch, data=types.SimpleNamespace(Dataset=Dataset))
    monkeypatch.setattr(shard.group, "size", 2)
    monkeypatch.setattr(shard.presence, "needs_all", lambda _: None)
    monkeypatch.setattr(shard.batch_shard, "is_batched", lambda _: False)
    with pytest.raises(TypeError, match="tf.mpi.shard takes a tf.data.Dataset, not list"):
        shard.shard([1, 2], None)
    with pytest.raises(ValueError, match="have no first dimension to split. Pass batched=False"):
        shard.shard(Dataset(), True)


def test_a_zip_of_a_part_and_an_undivided_dataset_is_reported(feeds, said, monkeypatch):
    shard = load("tensorflow.mpi._src.data.dataset_shard")
    monkeypatch.setattr(shard.log, "once", lambda line, *_, **__: said.append(line))
    monkeypatch.setattr(shard.transformations, "is_zip", lambda dataset: hasattr(dataset, "zips"))

    def made(*inputs: Any, **marks: Any) -> Any:
        return types.SimpleNamespace(_inputs=lambda: inputs, **marks)

    undivided, part = made(), made(made(), _tf_mpi_part=True)
    both = made(made(part), part, zips=True)
    assert shard._part_of(both) is both and not said
    mixed = made(made(part, undivided, zips=True))
    assert shard._part_of(mixed) is mixed
    assert said[0].startswith("a loop over a zip pairs this rank's part of one dataset with all of")
    assert "pass each zipped dataset to tf.mpi.shard, or zip them undivided" in said[0]


def test_a_dataset_that_is_used_many_times_is_visited_once(feeds):
    """2**60 paths lead to the same source."""
    shard = load("tensorflow.mpi._src.data.dataset_shard")
    dataset = types.SimpleNamespace(_inputs=lambda: [])
    for _ in range(60):
        dataset = types.SimpleNamespace(_inputs=lambda source=dataset: [source, source])
    assert not shard.is_part(dataset)


def test_batches_without_samples_are_reported_with_a_remedy(feeds, monkeypatch):
    whys: list[Any] = []
    monkeypatch.setattr(feeds.plan, "plan_for", lambda *given: whys.append(given[3]))
    monkeypatch.setattr(feeds.batch_shard, "type_without_samples", lambda _: None)
    monkeypatch.setattr(feeds.batch_shard, "differing_rows", lambda _: [3, 4])
    feeds._plan(types.SimpleNamespace(step=object()), None, True, True)
    assert [why.what for why in whys] == [
        "a batch whose tensors have different first dimensions (3 and 4)"
    ]
    assert whys[0].way_out == "give all inputs the same first dimension"
    monkeypatch.setattr(feeds.batch_shard, "type_without_samples", lambda _: "Graph")
    feeds._plan(types.SimpleNamespace(step=object()), None, True, True)
    assert whys[1].way_out == "derive Graph from tf.experimental.BatchableExtensionType"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (types.SimpleNamespace(), "is of compat.v1"),
        ("GeneratorDataset", "does not depend only on its element (GeneratorDataset)"),
        ("Add", "reads a variable, or a table that may be written"),
    ],
)
def test_the_reason_why_a_function_must_run_in_order_is_given(feeds, monkeypatch, function, words):
    determinism = feeds.streams.determinism
    if isinstance(function, str):
        node = types.SimpleNamespace(op=function)
        graph = types.SimpleNamespace(as_graph_def=lambda: None)
        monkeypatch.setattr(determinism.contents, "nodes", lambda _: [(node, {})])
        monkeypatch.setattr(determinism.contents, "is_writable_resource", lambda _: True)
        monkeypatch.setattr(determinism, "_is_harmless", lambda *_: True)
        function = types.SimpleNamespace(captured_inputs=[1], graph=graph)
    assert determinism.why_not_delayed(types.SimpleNamespace(function=function)) == words


def test_the_reason_why_a_map_of_batches_needs_all_rows_is_given(feeds, monkeypatch):
    row_wise = load("tensorflow.mpi._src.data.row_wise")
    flatten = types.SimpleNamespace(flatten=lambda structure: structure)
    pretend(monkeypatch, nest=flatten)
    ops: list[str] = []
    monkeypatch.setattr(row_wise.contents, "node_ops", lambda _: ops)
    monkeypatch.setattr(row_wise.samples, "is_batched", lambda _: True)
    monkeypatch.setattr(row_wise.kinds, "key", id)
    made = types.SimpleNamespace(shape=types.SimpleNamespace(rank=2))
    mean, draw = (types.SimpleNamespace(type=name) for name in ("Mean", "RandomUniform"))
    mixed = types.SimpleNamespace(is_const=False, kind=None)
    analysis = types.SimpleNamespace(
        dependence=lambda _: mixed, why=lambda _: mean, foreign_draws=[]
    )
    monkeypatch.setattr(row_wise.kinds, "Analysis", lambda _: analysis)
    graph = types.SimpleNamespace(as_graph_def=lambda: None, inputs=[made], outputs=[made])
    wrapped = types.SimpleNamespace(
        function=types.SimpleNamespace(graph=graph), _input_structure=[made]
    )
    assert row_wise._why_mixed(wrapped) == "mixes the samples of a batch (Mean)"
    rows = types.SimpleNamespace(kind=row_wise.Kind.ROWS, outer=row_wise.ONE, inner=row_wise.ONE)
    analysis.dependence = lambda _: rows
    made.shape = type("Shape", (tuple,), {"rank": 2})((8, 3))
    assert row_wise._why_mixed(wrapped) == "works only for batches of one size"
    made.shape = types.SimpleNamespace(rank=2)
    graph.outputs, analysis.foreign_draws = [], [draw]
    assert row_wise._why_mixed(wrapped) == "draws for a whole batch (RandomUniform)"
    ops.append("Assert")
    assert row_wise._why_mixed(wrapped) == "checks a whole batch (Assert)"
    monkeypatch.setattr(row_wise.determinism, "why_not_delayed", lambda _: None)
    monkeypatch.setattr(row_wise, "_is_of_tensors", lambda _: False)
    dataset = types.SimpleNamespace(_map_func=wrapped, element_spec=None)
    dataset._input_dataset = dataset
    assert (
        row_wise.function(dataset)
        == "takes or returns tensors that are not dense, or of unknown rank"
    )


def test_a_pydataset_whose_batches_every_rank_makes_is_reported(feeds, said, monkeypatch):
    python_batches = feeds.python_batches
    flatten = types.SimpleNamespace(flatten=lambda spec: spec)
    pretend(monkeypatch, nest=flatten, OptionalSpec=Dataset)
    monkeypatch.setattr(python_batches.packing, "encode_spec", lambda _: "")
    monkeypatch.setattr(python_batches.control_plane, "headers", lambda label, mine: [mine, mine])
    given = batches(feeds, changed=["its attribute 'seen'"])
    vars(given).update(dataset=Dataset(), description=lambda: [])
    assert python_batches.dataset_of_all(given, [1], "fit") is None
    every = "Dataset.__getitem__: every rank makes all batches, because it "
    assert said == [f"{every}changes its attribute 'seen' when it makes a batch"]
    python_batches.dataset_of_all(given, [Dataset()], "fit")
    assert said[1] == f"{every}yields None for a part of a batch"


def test_a_loop_whose_loss_is_not_a_sample_mean_is_reported(feeds, monkeypatch):
    loop_losses = load("tensorflow.mpi._src.global_batch.loop_losses")
    lines: list[str] = []
    monkeypatch.setattr(loop_losses.log, "once", lambda line, *_, **__: lines.append(line))
    monkeypatch.setattr(loop_losses, "location", lambda _: "Sum in train.py:8")
    monkeypatch.setattr(loop_losses.group, "size", 2)
    target = types.SimpleNamespace(shape=types.SimpleNamespace(rank=0), op=None)
    analysis = types.SimpleNamespace(why=lambda _: None)
    for kind in (loop_losses.Kind.SUM, loop_losses.Kind.MIXED, loop_losses.Kind.MEAN):
        loop_losses._warn(target, kind, analysis)
    begins = "a loop over a divided dataset takes the gradient of a loss (Sum in train.py:8) that "
    assert [line.startswith(begins) for line in lines] == [True, True]
    assert "is a sum over samples: the average over 2 ranks is 1/2 of it" in lines[0]
    assert "is not a mean over samples: the average over ranks differs from the whole" in lines[1]
    assert "use a mean over samples, or compute it from tf.mpi.gather_batch(x)" in lines[1]


def test_nothing_follows_an_error_of_a_pipeline(feeds):
    failures = feeds.streams.failures
    exchanges = failures.Exchanges("data 0")
    assert exchanges._name_for(0).startswith(b"allgather data 0")
    exchanges.got()
    assert exchanges._name_for(1)
    with pytest.raises(RuntimeError, match="no element follows an error"):
        exchanges._name_for(2)


def test_a_rank_0_that_has_ended_early_is_an_error(feeds, monkeypatch):
    streams = feeds.streams
    checks = types.SimpleNamespace(assert_greater=mock.MagicMock())
    monkeypatch.setitem(sys.modules, "tensorflow", mock.MagicMock(debugging=checks))
    monkeypatch.setattr(streams.group, "rank", 1)
    monkeypatch.setattr(streams.determinism, "has_effects", lambda _: False)
    for module, name in ((streams.packing, "decode_spec"), (streams.packing, "unpack")):
        monkeypatch.setattr(module, name, mock.MagicMock())
    monkeypatch.setattr(streams.input_stats, "mark_counted", lambda _: None)
    monkeypatch.setattr(streams, "gather", mock.MagicMock())

    def map_on_request(dataset: Any, function: Any) -> Any:
        function((mock.MagicMock(), mock.MagicMock()))
        return mock.MagicMock()

    monkeypatch.setattr(streams.batch_shard, "map_on_request", map_on_request)
    streams._from_rank_0(mock.MagicMock(), "data 0", "fit", "")
    text = checks.assert_greater.call_args.args[2]
    assert text == "fit: rank 0, which sends these data, ended before it had sent all of them"


def test_a_callback_that_reads_batches_of_predict_is_reported(feeds, said, monkeypatch):
    predictions = load("tensorflow.mpi._src.data.predictions")
    monkeypatch.setattr(predictions.log, "once", lambda line, **_: said.append(line))
    monkeypatch.setattr(predictions.control_plane, "any_rank", lambda label, mine: mine)
    call = predictions.Prediction()
    assert not call.any_callback_reads_batches("predict 1") and not said
    call.callback_reads_batches = True
    assert call.any_callback_reads_batches("predict 1")
    assert said[0].startswith("predict: a callback has on_predict_batch_end, which receives the")
    assert "so every rank predicts all samples, at one process's speed" in said[0]


def test_a_map_inside_a_function_is_named(feeds, monkeypatch):
    selection = feeds.selection
    ops = ["ParallelMapDatasetV2"]
    monkeypatch.setattr(selection.transformations, "is_map", lambda _: False)
    monkeypatch.setattr(selection.contents, "node_ops", lambda _: ops)
    graph = types.SimpleNamespace(as_graph_def=lambda: None)
    wrapped = types.SimpleNamespace(function=types.SimpleNamespace(graph=graph), _func=batches)
    dataset = types.SimpleNamespace(_functions=lambda: [wrapped])
    assert selection._function_name(dataset) == "a map in function 'batches'"
    ops.clear()
    assert selection._function_name(dataset) is None


def test_what_predict_reads_ahead_but_does_not_use_is_not_recorded(feeds):
    import tensorflow as tf

    call = feeds.predictions.Prediction()
    noted = call.note_elements(tf.data.Dataset.range(40).batch(4))
    shards = feeds.batch_shard.shard_batches(noted, feeds.batch_shard.maybe_shard)
    batches = iter(call.record(shards.prefetch(2), as_shards=False))
    for _ in range(3):
        next(batches)
    deadline = time.monotonic() + 60
    while len(call.elements) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(call.elements) == 6 and call.sizes == [4, 4, 4]
    assert call.digest_of_used() == call.elements[3] != call.elements[5]
