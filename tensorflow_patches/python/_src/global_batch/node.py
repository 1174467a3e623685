"""An op of a graph and the dependences of its inputs, as passed to the rules."""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import Dependence, Kind
from tensorflow.mpi._src.global_batch.sizes import Number

# An attribute of the ops of a draw for samples, the last of which is an Identity. Its numbers are
# `axis`, `factor` and `outer` of sites.Draw, and whether the draw is in a nested function.
DRAWN = "_tf_mpi_drawn"


def drawn_mark(op: Any) -> list[int] | None:
    """The numbers of DRAWN; None if `op` does not draw for samples."""
    try:
        found: list[int] = op.get_attr(DRAWN)
    except ValueError:
        return None
    return found


class Node:
    """One output of an op and the dependences of its inputs.

    `rows` is the number of samples, None if not static; `size` is a Number for it, perhaps sizes.N.
    """

    def __init__(
        self, analysis: Any, output: Any, deps: list[Dependence], rows: int | None
    ) -> None:
        self.analysis = analysis
        self.output = output
        self.op = output.op
        self.type = output.op.type
        self.inputs = list(output.op.inputs)
        self.deps = deps
        self.rows = rows
        self.size = sizes.number(rows) if rows else sizes.N

    def with_deps(self, deps: list[Dependence], which: list[int] | None = None) -> Node:
        """A copy with other dependences of its inputs; with `which`, it has only these inputs."""
        other = Node(self.analysis, self.output, deps, self.rows)
        if which is not None:
            other.inputs = [self.inputs[i] for i in which]
        return other

    def rank(self, i: int) -> int | None:
        rank: int | None = self.inputs[i].shape.rank
        return rank

    def numbers(self, i: int) -> Any:
        """The values of input `i` as an array of Numbers; None if unknown."""
        return self.deps[i].numbers

    def ints(self, i: int) -> list[int] | None:
        """The values of input `i`, flattened, if all are known integers; otherwise None."""
        return sizes.to_ints(self.numbers(i))

    def axis(self, i: int, rank: int | None) -> int | None:
        """The axis, of a tensor of rank `rank`, that input `i` contains; None if unknown."""
        ints = self.ints(i)
        return None if not ints or len(ints) > 1 or not rank else ints[0] % rank

    def dims(self, i: int) -> list[Number] | None:
        """The shape of input `i`; None if its rank is unknown."""
        return self.dims_of(self.inputs[i], self.deps[i])

    def dims_of(self, tensor: Any, dep: Dependence) -> list[Number] | None:
        if tensor.shape.rank is None:
            return None
        graph = getattr(tensor.graph, "name", "")  # tells branches apart
        name = f"{self.analysis.call}{graph}/{tensor.op.name}:{tensor.value_index}"
        # Whether its other dimensions may depend on the samples, too.
        is_lost = dep.base in (Kind.MIXED, Kind.UNKNOWN) or dep.axis < 0
        found = []
        for axis, size in enumerate(tensor.shape):
            if dep.has_rows and axis == dep.axis:
                counted = sizes.symbol("#", name)
                found.append(counted if dep.mask else dep.outer * self.size * dep.inner)
            elif size is not None:
                found.append(sizes.number(size))
            else:
                found.append(sizes.symbol("?" if is_lost else "", f"{name}[{axis}]"))
        return found
