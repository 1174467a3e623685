"""Datasets passed to fit, evaluate and predict: what Keras 3 and tf_keras have in common.

A dataset is replaced by this rank's part of it (batch_shard.py). A train or test step gets samples
in the form that the script's step expects, and runs with their weight in the average.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tensorflow.mpi import config
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.data import (
    batch_shard,
    own_data,
    predictions,
    python_batches,
    selection,
    streams,
    transformations,
)
from tensorflow.mpi._src.global_batch import batch, plan, results, states
from tensorflow.mpi._src.global_batch.sites import Plan, Why
from tensorflow.mpi._src.interpose import replacement_table
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.runtime import group, log

_KERAS_BATCH = 32  # Keras's default batch size of arrays
_AHEAD = 2  # batches
_numbers = itertools.count(1)  # of datasets, in program order


class Feed(NamedTuple):
    """The dataset that Keras iterates in place of the script's.

    Attributes:
      num_batches: its number of batches; None if unknown or infinite.
      in_turn: whether each rank takes a whole batch per step, so an epoch has fewer steps.
    """

    dataset: Any
    num_batches: int | None
    in_turn: bool = False


def takes_parts() -> bool:
    """Whether each rank takes a part of the data that all ranks are given."""
    return group.size > 1 and config.get("TF_MPI_SHARD") != "off"


def batch_per_rank() -> bool:
    """Whether the script's batch size is that of each rank, for data that all ranks are given."""
    return takes_parts() and config.batch_is_per_rank()


class Given(NamedTuple):
    """The dataset that Keras has made from the script's argument.

    Attributes:
      dataset: a tf.data.Dataset of batches: the same on all ranks, or each rank's own
        (TF_MPI_SHARD=off; own_data.is_own).
      what: its name in messages.
      num_batches: the number of batches in one epoch; None if unknown or infinite.
      sizes: for arrays, the possible numbers of samples of a batch of `dataset`; None for other
        data.
      once: whether it can be iterated only once.
      all_epochs: whether it contains all epochs of the call, each of num_batches.
      step: the step that will run on each batch; None if unknown.
      python_batches: makes batches by their index; None if Python does not make them by index.
    """

    dataset: Any
    what: str
    num_batches: int | None
    sizes: Collection[int] | None
    once: bool = False
    all_epochs: bool = False
    step: plan.Step | None = None
    python_batches: python_batches.Batches | None = None


def global_sizes(batch_size: int | None, steps: int | None) -> tuple[int | None, int | None]:
    """The global batch size and steps per epoch for arrays, from the script's arguments."""
    if not batch_per_rank():
        return batch_size, steps
    fewer = math.ceil(steps / group.size) if steps and steps > 0 else steps
    if batch_size is None and fewer is None:
        return _KERAS_BATCH * group.size, None
    return batch_size and batch_size * group.size, fewer


def shard_of(given: Given) -> Feed:
    """This rank's part of a dataset. Collective.

    Raises:
      ValueError: the ranks were given arrays, or equal pipelines, of different sizes.
    """
    predicting, call = predictions.take_expected()
    sizes = given.sizes or batch_shard.batch_sizes(given.dataset)
    endless = batch_shard.length(given.dataset) == math.inf
    dataset = _of_generator(given.dataset) if given.once else given.dataset
    length = "endless" if endless else given.num_batches
    stream = streams.Stream(dataset, length, sorted(sizes or ()) or None, has_effects=given.once)
    label = f"data {next(_numbers)}: {given.what}"
    if not takes_parts() or own_data.is_own(given.dataset):
        return Feed(given.dataset, given.num_batches) if predicting else _own(given, stream, label)
    if predicting:
        return _to_predict(given, stream, label, call)
    stream = _made_by_all(given, stream, label) or streams.same_everywhere(
        stream, label, given.what, given.sizes is not None
    )
    by_python = (
        stream.exchanged
        and stream.has_effects
        and given.python_batches is None
        and given.sizes is None
    )
    if by_python and streams.drawing_map(given.dataset) is None:
        log.once(
            f"{given.what}: Python code, or an op that writes a variable, makes or changes the "
            "samples (a generator, py_function or numpy_function). It runs on every rank, and all "
            "ranks train on rank 0's batches, so input does not get faster with more ranks. To "
            "share its work, use a keras.utils.PyDataset, or maps that contain other TensorFlow "
            "ops only",
            key="one stream",
        )
    num_batches = None if stream.length == "endless" else stream.length
    spec = stream.dataset.element_spec
    if not batch_shard.is_batched(spec):
        return Feed(stream.dataset, num_batches)
    in_turn = batch_per_rank() and not given.sizes
    step_plan = _plan(given, spec, not batch_per_rank(), _are_even(stream, in_turn))
    if step_plan is not None and step_plan.is_whole and not batch_per_rank():
        whole = stream.dataset if step_plan.plain else streams.as_whole(stream.dataset)
        return Feed(whole, num_batches)
    if in_turn:
        return _in_turn(stream, label)
    element = batch_shard.element_maker(stream.sizes)
    if step_plan is not None and step_plan.draws_by_kernels:
        # The kernels' states belong to a trace (Plan.draws_by_kernels). All calls must share it, so
        # their elements need the same structure.
        element = batch_shard.maybe_shard
    return Feed(_part(given, stream, element), num_batches)


def _made_by_all(given: Given, stream: streams.Stream, label: str) -> streams.Stream | None:
    """Batches of which each rank makes its share; None if that is not possible."""
    if given.python_batches is None:
        return None
    dataset = python_batches.dataset_of_all(given.python_batches, given.dataset.element_spec, label)
    return None if dataset is None else stream._replace(dataset=dataset, exchanged=True)


def _are_even(stream: streams.Stream, in_turn: bool = False) -> bool:
    """Whether every rank will have the same number of samples in each step."""
    if not stream.sizes:
        return False
    if not in_turn:
        return all(size % group.size == 0 for size in stream.sizes)
    length = stream.length
    ends_even = length == "endless" or (isinstance(length, int) and length % group.size == 0)
    return len(stream.sizes) == 1 and ends_even


def _plan(given: Given, spec: Any, whole_batches: bool, is_even: bool) -> Plan | None:
    """The plan for batches of `spec`: see plan.plan_for."""
    if given.step is None:
        return None
    why = None
    kind = batch_shard.type_without_samples(spec)
    rows = batch_shard.differing_rows(spec) or sorted(transformations.zipped_sizes(given.dataset))
    if kind is not None and whole_batches:
        what = f"a batch with a {kind}, whose samples are unknown,"
        why = Why(what, way_out=f"derive {kind} from tf.experimental.BatchableExtensionType")
    elif len(rows) > 1 and whole_batches:
        lengths = " and ".join(map(str, rows))
        what = f"a batch whose tensors have different first dimensions ({lengths})"
        why = Why(what, way_out="give all inputs the same first dimension")
    return plan.plan_for(given.step, spec, is_even, why, whole_batches)


def _to_predict(
    given: Given, stream: streams.Stream, label: str, call: predictions.Prediction | None
) -> Feed:
    """This rank's part of the data if all ranks have the same; otherwise all of its own data.

    Data that cannot be compared in advance is compared at the end.
    """
    whole = Feed(given.dataset, given.num_batches)
    if call is None:  # the second run, because the parts' results could not be gathered
        return whole
    if call.any_callback_reads_batches(label):
        return whole
    spec = given.dataset.element_spec
    made_by_all = _made_by_all(given, stream, label) if batch_shard.is_batched(spec) else None
    if made_by_all is None:
        headers, same, differ = streams.compare(stream, label, given.sizes is not None)
        if not batch_shard.is_batched(spec):
            return whole
        forms = [(header.length, header.sizes, header.spec) for header in headers]
        same_form = all(form == forms[0] for form in forms)
        if differ or given.once or not same_form:
            if not given.once:
                predictions.note_own_data(given.what)
            return whole
    step_plan = _plan(given, spec, True, _are_even(stream))
    if step_plan is not None and step_plan.is_whole:
        return whole
    if made_by_all is not None:
        stream = made_by_all
    elif not same:
        _report_undivided(given)
        stream = stream._replace(dataset=call.note_elements(given.dataset))
    draws = step_plan is not None and step_plan.draws_rows
    return Feed(
        call.record(
            _part(given, stream, batch_shard.maybe_shard, selects=made_by_all is not None or same),
            as_shards=draws,
        ),
        None if stream.length == "endless" else stream.length,
    )


def _report_undivided(given: Given) -> None:
    work = selection.mapping_functions(given.dataset)
    if work:
        log.once(
            "predict: the samples may differ by rank, because Python code, a random op or "
            "one with a state makes or changes them. So every rank does all the work on them "
            f"({', '.join(work[:3])}), and only the model's is divided. To divide more, use maps "
            "that contain other TensorFlow ops only",
            key="predict undivided",
        )


def _part(
    given: Given,
    stream: streams.Stream,
    element: Callable[[Any, Any, Any, Any], Any],
    selects: bool = True,
) -> Any:
    """This rank's samples. Reads two batches ahead; none if all ranks must request them together;
    one, on all ranks, if making them has side effects (see _of_generator).

    Args:
      selects: whether the work on other ranks' samples may be left out.
    """
    if given.sizes is None and selects:
        part = selection.shard_batches(stream, element)
    else:  # Keras slices arrays into batches: no work on single samples
        part = batch_shard.shard_batches(stream.dataset, element)
    if stream.has_effects:
        return part.prefetch(1)
    return part if stream.exchanged else part.prefetch(_AHEAD)


def _of_generator(dataset: Any) -> Any:
    """The dataset of a generator without Keras's prefetch; _part reads one batch ahead.

    Another call of fit may continue the generator, and batches read ahead are then lost. A race
    decides whether Keras reads one or two batches ahead; all ranks must read the same number.
    """
    return dataset._input_dataset if transformations.is_prefetch(dataset) else dataset


def _in_turn(stream: streams.Stream, label: str) -> Feed:
    """Whole batches in turn: rank r has batches r, r + size, ..."""
    part, length = streams.in_turn(stream), stream.length
    steps = math.ceil(length / group.size) if isinstance(length, int) else None
    if _are_even(stream, in_turn=True) and steps != 0:
        part = streams.as_even(part)
    else:
        part = streams.agree(streams.count(part), label)
    return Feed(part, steps, in_turn=True)


def _own(given: Given, stream: streams.Stream, label: str) -> Feed:
    """The batches of this rank's own data."""
    if group.size == 1 or not batch_shard.is_batched(given.dataset.element_spec):
        return Feed(given.dataset, given.num_batches)
    _plan(given, given.dataset.element_spec, whole_batches=False, is_even=False)
    everyone = control_plane.headers(label, [stream.length, stream.sizes])
    lengths = [length for length, _ in everyone]
    steps = max(lengths) if all(isinstance(length, int) for length in lengths) else None
    same = all(theirs == everyone[0] for theirs in everyone)
    if same and stream.length is not None and stream.sizes and len(stream.sizes) == 1:
        return Feed(streams.as_even(given.dataset), steps)
    counted = streams.count(given.dataset)
    if given.all_epochs and steps is not None:
        counted = streams.fill_epochs(counted, stream.length, steps)
    return Feed(streams.agree(counted, label), steps)


def step_on_shard(model: Any, kind: str, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `step`, a train_step or test_step (`kind`) of `model`, to take shards, too.

    A shard that does not count (MaybeShard.counts) leaves metrics and moving averages unchanged.
    """

    def run(data: Any) -> Any:
        current = plan.current(model, kind)
        if isinstance(data, batch_shard.WholeBatch):
            return _on_whole(step, data.data)
        if not batch_shard.is_shard(data):
            if current is not None and current.is_whole and current.plain:
                return _on_whole(step, data)
            with scope.on_script_data():
                return step(data)
        if current is not None and current.is_whole:
            with batch.step_on(data) as part:
                whole = part.gathered(data.data)
            return _on_whole(step, whole)
        with (
            scope.on_part(),
            batch.step_on(data, current) as part,
            states.restored_after_stand_in(model, part),
        ):
            return results.note_returned(model, kind, part, step(data.data))

    return run


def prediction_on_shard(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `step`, the predict_step of `model`, to take shards and draw for their samples."""

    def run(data: Any) -> Any:
        if not batch_shard.is_shard(data):
            with scope.replicated_step():
                return step(data)
        with batch.step_on(data, plan.current(model, "predict_step")):
            return step(data.data)

    return run


def _on_whole(step: Callable[[Any], Any], data: Any) -> Any:
    """Runs a step on the samples of all ranks, on every rank."""
    with batch.replicated_step():
        return step(data)


def wrap_steps(model: Any) -> None:
    """Wraps the model's steps to take elements of shard_of's datasets.

    Steps may be defined in the model's class, in a mixin, or on the model itself.
    """
    for name in plan.STEPS.values():
        if name in vars(model):
            step = vars(model)[name]
            if not hasattr(step, "_tf_mpi_step"):
                vars(model)[name] = _marked(_on_shard(model, name, step))
        elif not hasattr(getattr(type(model), name), "_tf_mpi_step"):
            replacement_table.put(
                type(model), name, _method_on_shard(name, getattr(type(model), name))
            )


def _on_shard(model: Any, name: str, step: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if len(given) != 1:  # the script's own call: Keras passes nothing but the data
            return step(*args, **kwargs)
        on_data = step if args else lambda data: step(**dict.fromkeys(kwargs, data))
        if name == "predict_step":
            return prediction_on_shard(model, on_data)(*given)
        return step_on_shard(model, name, on_data)(*given)

    return run


def _marked(step: Any) -> Any:
    step._tf_mpi_step = True
    return step


def _method_on_shard(name: str, original: Any) -> Any:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _on_shard(self, name, functools.partial(original, self))(*args, **kwargs)

    return _marked(step)
