"""Warns if the average of gradients in a training loop is not the whole batch's gradient.

In a loop over a divided dataset each rank takes the gradient of its part's loss, and the ranks
average the gradients. That is the whole batch's gradient only if the loss is a mean over samples.
The ops of a graph show whether it is; in eager code this is unknown.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.global_batch import kinds
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.global_batch.sites import location
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.runtime import group, log
from tensorflow.mpi._src.variables import naming

_ITERATORS = {"IteratorGetNext", "OptionalGetValue"}
_MEANS = "_tf_mpi_means"  # attribute of a graph: see as_mean()
_REMEDY = "use a mean over samples, or compute it from tf.mpi.gather_batch(x)"


def checking(compute_gradients: Any) -> Any:
    """Wraps compute_gradients(loss, ...) of compat.v1's optimizers."""

    @hooking.without_autograph
    def checked(self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        check([loss])
        return hooking.with_callers_autograph(compute_gradients)(self, loss, *args, **kwargs)

    return checked


def check(targets: list[Any]) -> None:
    """Warns of each loss among `targets` that is known not to be a mean over samples.

    Called where gradients of trained variables are taken outside of Keras's fit. A script that has
    called tf.mpi.allreduce or allgather outside of graphs is not warned: it may scale them itself.
    """
    if group.size == 1 or not scope.is_divided() or collectives.combined_by_script:
        return
    if scope.is_on_part() or scope.is_replicated_step():
        return
    for target in targets:
        graph = getattr(target, "graph", None)
        samples = _samples(graph) if graph is not None else []
        if samples:
            known = dict.fromkeys(map(kinds.key, samples), Kind.ROWS)
            analysis = kinds.Analysis(known, samples[0].shape[0])
            for mean in getattr(graph, _MEANS, ()):
                analysis.note(mean, Kind.MEAN)
            _warn(target, analysis.kind(target), analysis)


def as_mean(loss: Any) -> Any:
    """Declares that the average of `loss` over the ranks is the whole batch's loss."""
    if hasattr(loss, "graph"):
        naming.noted(loss.graph, _MEANS, list).append(loss)
    return loss


def _samples(graph: Any) -> list[Any]:
    """Arguments and iterators' elements of `graph` whose rows may be the samples of a part."""
    parts = scope.own_rows() or set()
    inputs = getattr(graph, "inputs", ())
    given = [one for one in inputs if one.dtype not in ("resource", "variant")]
    captured = {id(inside) for _, inside in getattr(graph, "captures", ())}
    given = [one for one in given if id(one) not in captured]
    given += [out for op in graph.get_operations() if op.type in _ITERATORS for out in op.outputs]
    return [one for one in given if one.shape.rank and one.shape[0] in (None, *parts)]


def _warn(target: Any, kind: Kind, analysis: Any) -> None:
    if kind is Kind.SUM or (kind is Kind.ROWS and target.shape.rank):
        what = f"is a sum over samples: the average over {group.size} ranks is 1/{group.size} of it"
    elif kind in (Kind.RATIO, Kind.LINEAR, Kind.MIXED):
        what = "is not a mean over samples: the average over ranks differs from the whole batch's"
    else:
        return
    where = location(analysis.why(target) or target.op)
    log.once(
        f"a loop over a divided dataset takes the gradient of a loss ({where}) that {what}; "
        f"{_REMEDY}",
        key=f"loss of a loop {where}",
    )
