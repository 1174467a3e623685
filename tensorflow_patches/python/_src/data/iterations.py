"""Makes the order of a dataset's n-th iteration a function of its seeds and n, on all ranks.

A shuffle of tf.data draws a new seed for each iteration, including those that a later repeat()
starts. If an iterator is dropped before its end, the number of seeds drawn depends on how far it
has read ahead: a race, after which ranks continue in different orders. Therefore seeds are counted
here as if nothing had been read ahead. Where tf.data may have counted otherwise, the iterator gets
its own dataset: the same ops again, with shuffles that continue where they should. To make it, the
ops that create datasets are recorded as they run.

The input of a cache in memory is iterated until the cache is complete; each iteration is a pass. A
script's cache, and the caches that replace it in this rank's part of the data, must contain the
same order: that of the pass that completed one of them. Reading ahead decides whether a pass that
is cut short completes a cache, so the ranks agree on that when they communicate (streams.py).
Until then the replacements repeat their last pass, whether it was complete or not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

# Attributes of datasets' variant tensors:
_MADE = "_tf_mpi_made"  # its _Made
_ORIGIN = "_tf_mpi_origin"  # of a replacement: the script's variant tensor, which has its counts
_DRAWN = "_tf_mpi_drawn"  # how many seeds iterations have drawn
_UNCERTAIN = "_tf_mpi_uncertain"  # present if tf.data may have counted otherwise
_CACHED = "_tf_mpi_cached"  # of a cache: its _Cached
# Attribute of the resource that holds a cache's elements: the deleter, which keeps it alive.
_DELETER = "_tf_mpi_deleter"


class _Made(NamedTuple):
    """The op that made a dataset, and its arguments to TFE_Py_FastPathExecute: the inputs, then the
    attributes, each after its name."""

    op: str
    name: Any
    arguments: tuple[Any, ...]

    @property
    def inputs(self) -> dict[str, Any]:
        from tensorflow.python.framework import op_def_registry

        definition = op_def_registry.get(self.op)
        return dict(zip((each.name for each in definition.input_arg), self.arguments))

    @property
    def attributes(self) -> dict[str, Any]:
        attributes = self.arguments[len(self.inputs) :]
        return dict(zip(attributes[::2], attributes[1::2]))

    @property
    def draws(self) -> bool:
        """Whether it draws a seed for each iteration."""
        flags = ("reshuffle_each_iteration", "rerandomize_each_iteration")
        attributes = self.attributes
        return "seed_generator" in self.inputs and all(attributes.get(one, True) for one in flags)


@dataclasses.dataclass
class _Cached:
    """The shared state of a script's cache and of the caches that replace it.

    Attributes:
      made: how they were made, by the identity of the resource that holds their elements.
      drawn: how many seeds were drawn before the last pass began, by the identity of the shuffle's
        variant tensor in the script.
      is_fixed: whether the replacements repeat that pass.
    """

    made: dict[int, _Made] = dataclasses.field(default_factory=dict)
    drawn: dict[int, int] = dataclasses.field(default_factory=dict)
    is_fixed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether one of them contains all elements."""
        return any(map(_is_complete, self.made.values()))


class _Recorder:
    """The module pywrap_tfe, but records the ops that make datasets."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)

    def TFE_Py_FastPathExecute(self, context: Any, op: str, name: Any, *arguments: Any) -> Any:  # noqa: N802
        made = self._stock.TFE_Py_FastPathExecute(context, op, name, *arguments)
        # SaveDataset returns nothing, and ReduceDataset a list of values.
        if op.endswith(_DATASETS) and getattr(made, "dtype", None) == "variant":
            setattr(made, _MADE, _Made(op, name, arguments))
        return made


_DATASETS = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")


def noting(stock: Any) -> Any:
    """Replaces pywrap_tfe in the modules of dataset ops; records the ops of eager code."""
    return _Recorder(stock)


class _Path(NamedTuple):
    """How often, and how far, an iterator that runs to its end reads one transformation.

    Attributes:
      times: how often the transformation is iterated.
      unsure: whether it may be iterated more or less often if the iterator is dropped early.
      elements: how many elements are requested; infinity: all; None: unknown.
      cached: the cache that the elements fill; None if they fill none.
      again: whether the cache's last pass is repeated.
    """

    times: int = 1
    unsure: bool = False
    elements: float | None = math.inf
    cached: _Cached | None = None
    again: bool = False

    def combined_with(self, other: _Path) -> _Path:
        """Combines two paths of an iterator to one transformation; the result fills no cache."""
        return _Path(self.times + other.times, self.unsure or other.unsure)

    def to_input(self, made: _Made, name: str) -> _Path:
        """The path to the input `name` of the dataset that `made` describes."""
        # These are iterated after the input, or by the transformation's function.
        if name in ("another_dataset", "other_arguments"):
            return _Path(self.times, True, None)
        given, elements = made.inputs, self.elements
        if made.op == "RepeatDataset":
            return _Path(self.times * self._passes(given["input_dataset"], given["count"]), True)
        if elements is None or made.op in _ONE_BY_ONE:
            return self
        if made.op == "TakeDataset" and given["count"] >= 0:
            elements = min(elements, int(given["count"]))
        elif made.op in ("BatchDatasetV2", "ParallelBatchDataset"):
            elements *= int(given["batch_size"])
        elif made.op == "ShuffleDatasetV3":
            buffered = int(given["buffer_size"])  # tf.data.UNKNOWN_CARDINALITY: all elements
            elements = elements + buffered if buffered > 0 else math.inf
        elif elements < math.inf:  # an op that is not known here
            elements = None
        return self._replace(elements=elements)

    def _passes(self, source: Any, count: Any) -> int:
        """The passes of repeat(count) over `source`; if endless, those that certainly begin."""
        most = int(count) if count >= 0 else math.inf
        if self.elements is None or (self.elements == most == math.inf):
            return 1
        length = int(tf.raw_ops.DatasetCardinality(input_dataset=source))
        if self.elements < math.inf and length > 0:
            most = min(most, math.ceil(self.elements / length))
        return max(1, int(most)) if most < math.inf else 1


# Ops that request one element of each input for each element.
_ONE_BY_ONE = {
    "MapDataset", "ModelDataset", "OptionsDataset", "ParallelMapDatasetV2", "PrefetchDataset",
    "ZipDataset",
}  # fmt: skip


def _collect_draws(variant: Any, path: _Path, found: dict[int, tuple[Any, _Path]]) -> None:
    """Adds `variant` and the datasets before it, if they draw seeds, to `found`, by identity."""
    made = getattr(variant, _MADE, None)
    if made is None or path.elements == 0:
        return
    if made.op.startswith("CacheDataset"):
        for drawing, inner in _filling(variant, made, path).values():
            _add(drawing, inner, found)
        return
    if made.draws:
        _add(variant, path, found)
    for name, value in made.inputs.items():
        for source in _tensors(value):
            _collect_draws(source, path.to_input(made, name), found)


def _add(variant: Any, path: _Path, found: dict[int, tuple[Any, _Path]]) -> None:
    if id(variant) in found:
        path = path.combined_with(found[id(variant)][1])
    found[id(variant)] = variant, path


def _filling(variant: Any, made: _Made, path: _Path) -> dict[int, tuple[Any, _Path]]:
    """The datasets that draw seeds before an incomplete cache in memory; {} for other caches."""
    resource = made.inputs.get("cache")
    if not hasattr(resource, _DELETER):
        return {}  # of compat.v1
    found: dict[int, tuple[Any, _Path]] = {}
    _collect_draws(made.inputs["input_dataset"], path._replace(times=1), found)
    if not found or made.inputs["filename"].numpy():
        return {}
    origin = getattr(variant, _ORIGIN, variant)
    if origin is variant and _is_complete(made):
        return {}
    cached = getattr(origin, _CACHED, None) or _Cached()
    setattr(origin, _CACHED, cached)
    cached.made[id(resource)] = made
    # The script's cache repeats the last pass if one of the caches is complete; a replacement also
    # until the ranks have agreed whether one is (fix_pass).
    again = bool(cached.drawn) and (cached.is_complete if origin is variant else cached.is_fixed)
    cached.is_fixed = cached.is_fixed or origin is not variant
    return {
        identity: (drawing, inner._replace(cached=cached, again=again))
        for identity, (drawing, inner) in found.items()
    }


def holds_a_pass(cache: Any) -> bool:
    """Whether a script's cache, or a replacement, contains a pass of a dataset that draws seeds."""
    cached = getattr(cache._variant_tensor, _CACHED, None)
    return cached is not None and cached.is_complete


def fix_pass(cache: Any, is_fixed: bool) -> None:
    """Sets whether the replacements of a script's cache repeat its last pass; the ranks agree."""
    cached = getattr(cache._variant_tensor, _CACHED, None)
    if cached is not None:
        cached.is_fixed = is_fixed


def is_complete(cache: Any) -> bool:
    """Whether `cache`, a dataset that is a cache in memory, is complete."""
    made = getattr(cache._variant_tensor, _MADE, None)
    return made is not None and hasattr(made.inputs["cache"], _DELETER) and _is_complete(made)


def _is_complete(made: _Made) -> bool:
    """Whether a cache no longer needs its input: reads it over an input that fails when read."""
    from tensorflow.python.data.ops import dataset_ops

    given = made.attributes
    flat = {name: given[name] for name in ("output_types", "output_shapes")}
    spec = tuple(map(tf.TensorSpec, flat["output_shapes"], flat["output_types"]))
    source = dataset_ops._VariantDataset(made.inputs["input_dataset"], spec)
    unreadable = source.take(0).apply(tf.data.experimental.assert_cardinality(1))
    variant = tf.raw_ops.CacheDatasetV2(
        input_dataset=unreadable._variant_tensor,
        filename=made.inputs["filename"],
        cache=made.inputs["cache"],
        **flat,
    )
    try:
        _request_first(dataset_ops._VariantDataset(variant, spec))
    except tf.errors.FailedPreconditionError:
        return False
    return True


def holding(dummy: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps gen_dataset_ops.dummy_memory_cache: holds each eager cache by a resource of its own."""

    def made(*args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            return dummy(*args, **kwargs)
        resource, deleter = tf.raw_ops.AnonymousMemoryCache()
        setattr(resource, _DELETER, deleter)
        return resource

    return made


def _request_first(dataset: Any) -> None:
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    asked = dataset.with_options(options)
    asked._tf_mpi_undivided = True  # see dataset_shard.py
    next(iter(asked), None)


def _tensors(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, (list, tuple)) else (value,)


def times_drawn(dataset: Any) -> int:
    """How many seeds earlier iterations of `dataset`, also as part of others, have drawn."""
    return int(getattr(dataset._variant_tensor, _DRAWN, 0))


def register_replacement(made: Any, dataset: Any) -> None:
    """Declares that `made` replaces `dataset`: a shuffle, whose sequence of seeds it continues, or
    a cache in memory, whose order it must contain."""
    origin = getattr(dataset._variant_tensor, _ORIGIN, dataset._variant_tensor)
    setattr(made._variant_tensor, _ORIGIN, origin)
    setattr(origin, _UNCERTAIN, True)


def to_iterate(dataset: Any, unsure: bool = False) -> Any:
    """The dataset to iterate in place of `dataset`. Call it once for each iterator that is created:
    it counts the seeds that the iterator will draw. `unsure`: some ranks may create none."""
    found: dict[int, tuple[Any, _Path]] = {}
    _collect_draws(dataset._variant_tensor, _Path(unsure=unsure), found)
    replacements: dict[int, Any] = {}
    generators: dict[int, Any] = {}
    for identity, (variant, path) in found.items():
        origin = getattr(variant, _ORIGIN, variant)
        drawn = _count_draws(origin, path)
        needs_own = path.again or (drawn and hasattr(origin, _UNCERTAIN))
        if path.unsure:
            setattr(origin, _UNCERTAIN, True)  # from the next iteration on
        if not (needs_own and tf.executing_eagerly()):
            continue
        made = getattr(variant, _MADE)
        if id(origin) not in generators:
            generators[id(origin)] = _generator(made, drawn)
        i = list(made.inputs).index("seed_generator")
        replacements[identity] = _replaced(made, {i: generators[id(origin)][0]})
    if not replacements:
        return dataset
    return _as_dataset(
        dataset, _rebuilt(dataset._variant_tensor, replacements), list(generators.values())
    )


def reading(read: Callable[..., Any], on_rank_0: bool = False) -> Callable[..., Any]:
    """Wraps what iterates a dataset to its end without an iterator, such as reduce().

    Args:
      on_rank_0: only rank 0 does.
    """

    def counted(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        dataset = to_iterate(dataset, on_rank_0) if tf.executing_eagerly() else dataset
        return read(dataset, *args, **kwargs)

    return counted


def _count_draws(origin: Any, path: _Path) -> int:
    """Counts the seeds that an iterator will draw; returns how many were drawn before it."""
    drawn = int(getattr(origin, _DRAWN, 0))
    if path.again and path.cached is not None:
        return path.cached.drawn.get(id(origin), drawn)
    setattr(origin, _DRAWN, drawn + path.times)
    if path.cached is not None:
        path.cached.drawn[id(origin)] = drawn
    return drawn


def _generator(made: _Made, drawn: int) -> Any:
    """A seed generator, in the state that `made`'s has after `drawn` seeds, and its deleter."""
    seed, seed2 = made.inputs["seed"], made.inputs["seed2"]
    generator = tf.raw_ops.AnonymousSeedGenerator(seed=seed, seed2=seed2, reshuffle=True)
    _draw(seed, seed2, generator[0], drawn)
    return generator


def _replaced(made: _Made, replacements: dict[int, Any]) -> _Made:
    arguments = (replacements.get(i, value) for i, value in enumerate(made.arguments))
    return made._replace(arguments=tuple(arguments))


def _draw(seed: Any, seed2: Any, generator: Any, times: int) -> None:
    """Draws `times` seeds by iterating a shuffle of one element; 5 us each."""
    from tensorflow.python.data.ops import dataset_ops

    one = tf.data.Dataset.range(1)
    shuffled = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=one._variant_tensor,
        buffer_size=1,
        seed=seed,
        seed2=seed2,
        seed_generator=generator,
        **one._flat_structure,
    )
    drawing = dataset_ops._VariantDataset(shuffled, one.element_spec).repeat().take(times)
    _request_first(drawing.skip(times))


def _rebuilt(variant: Any, replacements: dict[int, Any]) -> Any:
    """The variant tensor of the same dataset with `replacements`; `variant` itself without any.

    Args:
      replacements: by identity of a variant tensor, how to make it anew, or the tensor that
        replaces it. Receives the tensors that are made here.
    """
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context

    found = replacements.get(id(variant))
    if found is not None and not isinstance(found, _Made):
        return found
    made = found or getattr(variant, _MADE, None)
    if made is None:
        return variant
    changed = {}
    for i, value in enumerate(made.inputs.values()):
        sources = [_rebuilt(source, replacements) for source in _tensors(value)]
        if any(new is not old for new, old in zip(sources, _tensors(value))):
            changed[i] = sources if isinstance(value, (list, tuple)) else sources[0]
    new = variant
    if changed or found is not None:
        made = _replaced(made, changed)
        new = pywrap_tfe.TFE_Py_FastPathExecute(
            context.context(), made.op, made.name, *made.arguments
        )
    replacements[id(variant)] = new
    return new


def _as_dataset(dataset: Any, variant: Any, held: list[Any]) -> Any:
    """`variant` as a dataset like `dataset`. Keeps `dataset` (its functions) and `held` alive."""
    from tensorflow.python.data.ops import dataset_ops

    made = dataset_ops._VariantDataset(variant, dataset.element_spec)
    made._options_attr = dataset.options()
    made._inputs = lambda: [dataset]
    made._tf_mpi_held = held
    return made
