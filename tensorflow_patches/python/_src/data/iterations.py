"""The order of a dataset's n-th iteration: a function of its seeds and n, on all ranks the same.

tf.data keeps with a shuffle how many seeds it has drawn: one each time that it is iterated, also
when a repeat() behind it does so. Where an iterator is dropped before its end, what it has read
ahead decides how many these were: a race, after which ranks go on in different orders. So they are
counted here as if nothing had been read ahead. Where tf.data may have counted otherwise the
iterator gets a dataset of its own: the same ops once more, with shuffles that go on where they
should. For that the ops that make datasets are noted as they run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

# Of variant tensors: how it was made, what counts its seeds, of which that has others; how many are
# drawn; whether tf.data may have counted otherwise.
_MADE, _ORIGIN = "_tf_mpi_made", "_tf_mpi_origin"
_DRAWN, _APART = "_tf_mpi_drawn", "_tf_mpi_apart"


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
    dropped before. elements: so many are asked for; infinity: all, None: who knows.
    """

    times: int = 1
    unsure: bool = False
    elements: float | None = math.inf

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
    if made is None or made.op.startswith("CacheDataset"):
        return  # what is cached is iterated once
    if made.draws:
        _, before = found.get(id(variant), (None, _Way(0)))
        both = _Way(before.times + way.times, before.unsure or way.unsure)
        found[id(variant)] = variant, both
    for name, value in made.inputs.items():
        for source in _tensors(value):
            _draws(source, way.past(made, name), found)


def _tensors(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, (list, tuple)) else (value,)


def times_drawn(dataset: Any) -> int:
    """By iterations of this transformation before, which may be other datasets'."""
    return int(getattr(dataset._variant_tensor, _DRAWN, 0))


def stands_for(made: Any, dataset: Any) -> None:
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
        drawn = getattr(origin, _DRAWN, 0)
        setattr(origin, _DRAWN, drawn + way.times)
        if way.unsure:
            setattr(origin, _APART, True)  # from the next iteration on
        if not (drawn and hasattr(origin, _APART) and tf.executing_eagerly()):
            continue
        made = getattr(variant, _MADE)
        if id(origin) not in generators:
            generators[id(origin)] = _generator(made, drawn)
        place = list(made.inputs).index("seed_generator")
        instead[identity] = _replaced(made, {place: generators[id(origin)][0]})
    if not instead:
        return dataset
    return _with(dataset, _again(dataset._variant_tensor, instead), list(generators.values()))


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

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
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
    next(iter(drawing.skip(times).with_options(options)), None)


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
    made._inputs = lambda: [dataset]
    made._tf_mpi_held = held
    return made
