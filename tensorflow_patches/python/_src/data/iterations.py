"""The order of a dataset's n-th iteration: a function of its seeds and n, on all ranks the same.

tf.data keeps with a shuffle how many seeds it has drawn: one each time that it is iterated, also
when a repeat() behind it does so. Where an iterator is dropped before its end, what it has read
ahead decides how many these were: a race, after which ranks go on in different orders. So they are
counted here as if nothing had been read ahead. Where tf.data may have counted otherwise the
iterator gets a dataset of its own: the same ops once more, with shuffles that go on where they
should. For that the ops that make datasets are noted as they run.

What is before a cache in memory is iterated until the cache is complete. A script's cache and those
that stand for it, of a rank's part, hold one order: that of the pass that has completed one. What
is read ahead may complete it or not, so the ranks agree on that where they meet (streams.py); until
they meet again a part keeps to its pass, complete or not.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Of variant tensors: how it was made, what counts its seeds, of which that has others; how many are
# drawn; whether tf.data may have counted otherwise. Of a cache: its _Cached. Of what holds its
# elements: what deletes them.
_MADE, _ORIGIN = "_tf_mpi_made", "_tf_mpi_origin"
_DRAWN, _APART = "_tf_mpi_drawn", "_tf_mpi_apart"
_CACHED, _DELETER = "_tf_mpi_cached", "_tf_mpi_deleter"


class _Made(NamedTuple):
    """The op that has made a dataset, and what TFE_Py_FastPathExecute was given for it: inputs, and
    attributes, each behind its name."""

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
        """Whether it draws seeds for each iteration."""
        again = ("reshuffle_each_iteration", "rerandomize_each_iteration")
        given = self.attributes
        return "seed_generator" in self.inputs and all(given.get(name, True) for name in again)


@dataclasses.dataclass
class _Cached:
    """What the caches that stand for one another have in common.

    made: how they were, by the identity of what holds their elements. drawn: before the pass that
    was begun last, how many seeds, by the identity of what draws them. is_fixed: parts keep to it.
    """

    made: dict[int, _Made] = dataclasses.field(default_factory=dict)
    drawn: dict[int, int] = dataclasses.field(default_factory=dict)
    is_fixed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether one of them holds all."""
        return any(map(_is_complete, self.made.values()))


class _Noting:
    """The module pywrap_tfe, as the functions that run the ops of datasets see it."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)

    def TFE_Py_FastPathExecute(self, context: Any, op: str, name: Any, *arguments: Any) -> Any:  # noqa: N802
        made = self._stock.TFE_Py_FastPathExecute(context, op, name, *arguments)
        if op.endswith(_DATASETS) and made is not None:  # nothing comes of SaveDataset
            setattr(made, _MADE, _Made(op, name, arguments))
        return made


_DATASETS = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")


def noting(stock: Any) -> Any:
    """Takes the place of pywrap_tfe in the modules of these functions, which eager code calls."""
    return _Noting(stock)


class _Way(NamedTuple):
    """From an iterator to a transformation, of one that comes to its end.

    times: how often the transformation is iterated. unsure: less often, or more, if the iterator is
    dropped before. elements: so many are asked for; infinity: all, None: who knows. cached: of the
    cache that it fills. again: by a pass that was begun before.
    """

    times: int = 1
    unsure: bool = False
    elements: float | None = math.inf
    cached: _Cached | None = None
    again: bool = False

    def beside(self, other: _Way | None) -> _Way:
        """Both of an iterator's ways to one transformation."""
        if other is None:
            return self
        return _Way(self.times + other.times, self.unsure or other.unsure)

    def past(self, made: _Made, name: str) -> _Way:
        """To the input `name` of what `made` has made."""
        if name in ("another_dataset", "other_arguments"):  # iterated when it is their turn
            return _Way(self.times, True, None)
        given, elements = made.inputs, self.elements
        if made.op == "RepeatDataset":
            return _Way(self.times * self._passes(given["input_dataset"], given["count"]), True)
        if elements is None or made.op in _ONE_BY_ONE:
            return self
        if made.op == "TakeDataset" and given["count"] >= 0:
            elements = min(elements, int(given["count"]))
        elif made.op in ("BatchDatasetV2", "ParallelBatchDataset"):
            elements *= int(given["batch_size"])
        elif made.op == "ShuffleDatasetV3":
            elements += int(given["buffer_size"])
        elif elements < math.inf:
            elements = None
        return self._replace(elements=elements)

    def _passes(self, source: Any, count: Any) -> int:
        """Of a repeat(count) of `source`; of an endless one those that are surely begun."""
        from tensorflow.python.ops import gen_dataset_ops

        most = int(count) if count >= 0 else math.inf
        if self.elements is None or (self.elements == most == math.inf):
            return 1
        length = int(gen_dataset_ops.dataset_cardinality(source))
        if self.elements < math.inf and length > 0:
            most = min(most, math.ceil(self.elements / length))
        return max(1, int(most)) if most < math.inf else 1


_ONE_BY_ONE = {
    "MapDataset", "ModelDataset", "OptionsDataset", "ParallelMapDatasetV2", "PrefetchDataset",
    "ZipDataset",
}  # fmt: skip


def _draws(variant: Any, way: _Way, found: dict[int, tuple[Any, _Way]]) -> None:
    """Into `found`, by identity: what draws seeds on the way to `variant`, and how often."""
    made = getattr(variant, _MADE, None)
    if made is None or way.elements == 0:
        return
    if made.op.startswith("CacheDataset"):
        for identity, (drawing, past) in _filling(variant, made, way).items():
            found[identity] = (
                drawing,
                past.beside(found[identity][1] if identity in found else None),
            )
        return
    if made.draws:
        before = found[id(variant)][1] if id(variant) in found else None
        found[id(variant)] = variant, way.beside(before)
    for name, value in made.inputs.items():
        for source in _tensors(value):
            _draws(source, way.past(made, name), found)


def _filling(variant: Any, made: _Made, way: _Way) -> dict[int, tuple[Any, _Way]]:
    """What draws seeds before a cache, which is iterated once to fill it; {} if it is complete."""
    found: dict[int, tuple[Any, _Way]] = {}
    place = made.inputs.get("cache")
    if not hasattr(place, _DELETER):
        return found  # of compat.v1
    _draws(made.inputs["input_dataset"], way._replace(times=1), found)
    if not found or made.inputs["filename"].numpy():
        return {}
    origin = getattr(variant, _ORIGIN, variant)
    if origin is variant and _is_complete(made):
        return {}
    cached = getattr(origin, _CACHED, None) or _Cached()
    setattr(origin, _CACHED, cached)
    cached.made[id(place)] = made
    again = bool(cached.drawn) and (cached.is_complete if origin is variant else cached.is_fixed)
    cached.is_fixed = cached.is_fixed or origin is not variant
    return {
        identity: (drawing, past._replace(cached=cached, again=again))
        for identity, (drawing, past) in found.items()
    }


def holds_a_pass(cache: Any) -> bool:
    """Whether a script's cache, or what stands for it, has been filled by what draws seeds."""
    cached = getattr(cache._variant_tensor, _CACHED, None)
    return cached is not None and cached.is_complete


def fix_pass(cache: Any, is_fixed: bool) -> None:
    """Whether its pass stays, as the ranks have agreed."""
    cached = getattr(cache._variant_tensor, _CACHED, None)
    if cached is not None:
        cached.is_fixed = is_fixed


def is_complete(cache: Any) -> bool:
    """Whether a dataset, a cache in memory, holds what is to be cached."""
    made = getattr(cache._variant_tensor, _MADE, None)
    return made is not None and hasattr(made.inputs["cache"], _DELETER) and _is_complete(made)


def _is_complete(made: _Made) -> bool:
    """Whether a cache needs its input no more: one that cannot be read is an error until then."""
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.ops import gen_dataset_ops

    given = made.attributes
    flat = {name: given[name] for name in ("output_types", "output_shapes")}
    spec = tuple(map(tf.TensorSpec, flat["output_shapes"], flat["output_types"]))
    source = dataset_ops._VariantDataset(made.inputs["input_dataset"], spec)
    unreadable = source.take(0).apply(tf.data.experimental.assert_cardinality(1))
    variant = gen_dataset_ops.cache_dataset_v2(
        unreadable._variant_tensor, made.inputs["filename"], made.inputs["cache"], **flat
    )
    try:
        _ask(dataset_ops._VariantDataset(variant, spec))
    except tf.errors.FailedPreconditionError:
        return False
    return True


def holding(dummy: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps gen_dataset_ops.dummy_memory_cache: what holds a cache's elements can be asked for."""

    @functools.wraps(dummy)
    def made(*args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.eager import context
        from tensorflow.python.ops import gen_dataset_ops

        if not context.executing_eagerly():
            return dummy(*args, **kwargs)
        place, deleter = gen_dataset_ops.anonymous_memory_cache()
        setattr(place, _DELETER, deleter)
        return place

    return made


def _ask(dataset: Any) -> None:
    """For its first element."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    asked = dataset.with_options(options)
    asked._tf_mpi_as_it_is = True  # see dataset_shard.py
    next(iter(asked), None)


def _tensors(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, (list, tuple)) else (value,)


def times_drawn(dataset: Any) -> int:
    """By iterations of this transformation before, which may be other datasets'."""
    return int(getattr(dataset._variant_tensor, _DRAWN, 0))


def register_replacement(made: Any, dataset: Any) -> None:
    """`made`, of the same seeds, takes the place of `dataset`, a shuffle: one sequence of both."""
    origin = getattr(dataset._variant_tensor, _ORIGIN, dataset._variant_tensor)
    setattr(made._variant_tensor, _ORIGIN, origin)
    setattr(origin, _APART, True)


def begun(dataset: Any) -> Any:
    """What is to be iterated for `dataset`, of which an iterator is being made."""
    import tensorflow as tf

    found: dict[int, tuple[Any, _Way]] = {}
    _draws(dataset._variant_tensor, _Way(), found)
    instead: dict[int, Any] = {}
    generators: dict[int, Any] = {}
    for identity, (variant, way) in found.items():
        origin = getattr(variant, _ORIGIN, variant)
        drawn = _drawn_before(origin, way)
        apart = way.again or (drawn and hasattr(origin, _APART))
        if way.unsure:
            setattr(origin, _APART, True)  # from the next iteration on
        if not (apart and tf.executing_eagerly()):
            continue
        made = getattr(variant, _MADE)
        if id(origin) not in generators:
            generators[id(origin)] = _generator(made, drawn)
        place = list(made.inputs).index("seed_generator")
        instead[identity] = _replaced(made, {place: generators[id(origin)][0]})
    if not instead:
        return dataset
    return _with(dataset, _again(dataset._variant_tensor, instead), list(generators.values()))


def _drawn_before(origin: Any, way: _Way) -> int:
    """How many seeds, when an iterator begins with the transformation at the end of `way`."""
    drawn = int(getattr(origin, _DRAWN, 0))
    if way.again and way.cached is not None:
        return way.cached.drawn.get(id(origin), drawn)
    setattr(origin, _DRAWN, drawn + way.times)
    if way.cached is not None:
        way.cached.drawn[id(origin)] = drawn
    return drawn


def _generator(made: _Made, drawn: int) -> Any:
    """Of the seeds of `made`, when it has `drawn` the first; and what keeps it."""
    from tensorflow.python.ops import gen_dataset_ops

    seed, seed2 = made.inputs["seed"], made.inputs["seed2"]
    generator = gen_dataset_ops.anonymous_seed_generator(seed=seed, seed2=seed2, reshuffle=True)
    _draw(seed, seed2, generator[0], drawn)
    return generator


def _replaced(made: _Made, instead: dict[int, Any]) -> _Made:
    arguments = (instead.get(place, value) for place, value in enumerate(made.arguments))
    return made._replace(arguments=tuple(arguments))


def _draw(seed: Any, seed2: Any, generator: Any, times: int) -> None:
    """By as many iterations of a shuffle of one element; 5 us each."""
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.ops import gen_dataset_ops

    one = tf.data.Dataset.range(1)
    shuffled = gen_dataset_ops.shuffle_dataset_v3(
        one._variant_tensor,
        buffer_size=1,
        seed=seed,
        seed2=seed2,
        seed_generator=generator,
        **one._flat_structure,
    )
    drawing = dataset_ops._VariantDataset(shuffled, one.element_spec).repeat().take(times)
    _ask(drawing.skip(times))


def _again(variant: Any, instead: dict[int, Any]) -> Any:
    """The dataset of a variant tensor, made of other ops in place of some; `instead` grows."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context

    found = instead.get(id(variant))
    if found is not None and not isinstance(found, _Made):
        return found
    made = found or getattr(variant, _MADE, None)
    if made is None:
        return variant
    changed = {}
    for place, value in enumerate(made.inputs.values()):
        sources = [_again(source, instead) for source in _tensors(value)]
        if any(new is not old for new, old in zip(sources, _tensors(value))):
            changed[place] = sources if isinstance(value, (list, tuple)) else sources[0]
    new = variant
    if changed or found is not None:
        made = _replaced(made, changed)
        new = pywrap_tfe.TFE_Py_FastPathExecute(
            context.context(), made.op, made.name, *made.arguments
        )
    instead[id(variant)] = new
    return new


def _with(dataset: Any, variant: Any, held: list[Any]) -> Any:
    """`variant` as `dataset`, whose functions it calls."""
    from tensorflow.python.data.ops import dataset_ops

    made = dataset_ops._VariantDataset(variant, dataset.element_spec)
    made._options_attr = dataset.options()
    made._inputs = lambda: [dataset]
    made._tf_mpi_held = held
    return made
