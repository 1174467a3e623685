"""The gradient of a loss on this rank's part of a batch.

The ops between the samples and the loss decide (kinds.py): a mean over samples needs nothing; the
gradient of a sum, or of a quotient of sums, is scaled, so that the ranks' average is the gradient
of the whole batch's loss. If the loss depends on several samples at once, the analysis of the step
(plan.py) has found that before, and every rank computes whole batches.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import lineage, script_gradients
from tensorflow.mpi._src.global_batch import batch, loop_losses, own_gradients
from tensorflow.mpi._src.global_batch.kinds import Kind, Term
from tensorflow.mpi._src.global_batch.sites import LOSS, Findings, Why, location
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import log

# Kinds of gradients of which the ranks' average is the whole batch's.
_AVERAGED = {Kind.GRADIENT, Kind.CONST, Kind.MEAN}


def of_whole_batch(original: Any) -> Any:
    """Wraps GradientTape.gradient(target, sources, output_gradients=None, ...)."""

    @hooking.without_autograph
    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        part = batch.current()
        function = hooking.with_callers_autograph(original)
        trained = [getattr(source, "trainable", False) for source in tf.nest.flatten(sources)]
        if part is None and any(trained):
            loop_losses.check(tf.nest.flatten(target))
        if part is not None and not part.is_suspended and any(trained):
            if part.findings is not None:
                _analyze(part, part.findings, tf.nest.flatten(target), output_gradients)
                if all(trained):
                    return tf.nest.map_structure(functools.partial(_placeholder, part), sources)
            elif output_gradients is None:
                target, output_gradients = _scaled(part, target)
        found = function(self, target, sources, output_gradients, *args, **kwargs)
        # The step returns a value of gradients, such as their norm.
        if part is not None and Kind.GRADIENT in part.values.values():
            for one in tf.nest.flatten(found):
                script_gradients.average_at_its_source(lineage.values_of(one))
        return found

    return gradient


def _placeholder(part: Any, variable: Any) -> Any:
    """Takes the place of the average of the ranks' gradients, in a graph that never runs."""
    found = tf.zeros_like(variable)
    part.note(found, Kind.GRADIENT)
    return found


def _analyze(part: Any, findings: Findings, targets: list[Any], upstream: Any) -> None:
    site, _ = findings.enter("gradient")
    for target in targets:
        terms = _terms(part, target)
        if (
            terms is None
            or upstream is not None
            and not (_are_means(terms) and part.is_by_sample(upstream))
        ):
            findings.whys.append(Why(LOSS, part.why(target)))
            return
        if any(part.kind(term.tensor) is Kind.GRADIENT for term in terms):
            # Until an optimizer averages them, gradients are the part's, and so is a penalty on
            # them.
            findings.whys.append(Why("a loss that depends on gradients"))
            return
        mixing = own_gradients.find_mixing_op(part.analysis, target)
        if mixing is not None:
            findings.whys.append(Why("the script's own gradient", location(mixing)))
        site.terms += [term.kind for term in terms]
    kinds = set(site.terms)
    if findings.eagerly and not kinds <= {Kind.MEAN, Kind.CONST} and kinds != {Kind.SUM}:
        findings.whys.append(Why(LOSS))


def intercept_in_trace(grads: Any) -> bool:
    """Analyzes what an optimizer receives; True if the step is only analyzed: it must not update.

    Args:
      grads: gradients, or pairs of a gradient and its variable.
    """
    part = batch.current()
    if part is None or part.findings is None:
        return False
    for one in list(grads):
        gradient = one[0] if isinstance(one, (tuple, list)) else one
        if gradient is not None and part.kind(gradient) not in _AVERAGED:
            part.findings.whys.append(
                Why("a gradient that the optimizer receives", part.why(gradient))
            )
            break
    part.findings.updates.append(tf.compat.v1.get_default_graph())
    return True


def _are_means(terms: list[Term]) -> bool:
    return all(term.kind in (Kind.MEAN, Kind.CONST) for term in terms)


def _terms(part: Any, target: Any) -> list[Term] | None:
    """The terms of a target; a target that is not a scalar stands for the sum of its elements."""
    kind = part.kind(target)
    if kind is Kind.ROWS and target.shape.rank:
        return [Term(target, Kind.SUM)]
    if kind is Kind.ROWS_OVER_SIZE:
        return [Term(target, Kind.MEAN)]
    found: list[Term] | None = part.terms(target)
    return found


def _scaled(part: Any, target: Any) -> tuple[Any, Any]:
    """(target, output_gradients) whose gradient, averaged over ranks, is the whole batch's."""
    site = part.planned.next("gradient")
    targets = tf.nest.flatten(target)
    # A static number of samples is a constant, which hides that a sum is divided by it. Therefore
    # the plan's kinds, found with an unknown number of samples, take precedence.
    kinds = set(site.terms) if site is not None else None
    if kinds is not None and kinds <= {Kind.MEAN, Kind.CONST}:
        return target, None
    if kinds == {Kind.SUM}:
        scaled = [tf.ones_like(one) * part.to_sum(one.dtype) for one in targets]
        return target, tf.nest.pack_sequence_as(target, scaled)
    if not all(map(batch.is_symbolic, targets)):
        return target, None
    found = [_terms(part, one) for one in targets]
    if any(terms is None for terms in found):
        # The analysis of the step found terms here, or did not reach this gradient.
        log.once(
            "a gradient is taken of a value that is neither a mean nor a sum over samples, so the "
            "average of the ranks' gradients is not one process's. Compute the loss as a mean over "
            "samples, or from tf.mpi.gather_batch(x)"
        )
        return target, None
    terms = [term for one in found for term in one or ()]
    if site is not None:
        if len(targets) == 1 and len(terms) != len(site.terms):
            terms = part.planned_terms(targets[0], site.terms) or terms
        terms = batch.with_kinds(terms, site.terms)
    if _are_means(terms):
        return target, None
    found, upstream = [], []
    for term in terms:
        factor = part.factor(term)
        own = tf.cast(term.factor(), term.tensor.dtype)
        found.append(term.tensor)
        upstream.append(tf.ones_like(term.tensor) * (own if factor is None else own * factor))
        for constant, slope in term.slopes():  # such as exp(-s), whose s is trained
            if part.analysis.is_trained(constant):
                found.append(constant)
                slope = slope if factor is None else slope * factor
                upstream.append(tf.cast(slope, constant.dtype))
    return found, upstream
