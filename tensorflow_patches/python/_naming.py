"""Names of trained variables, declared in program order while graphs are built.

The library numbers eager variables of one debug name in the order in which it first hears of them
(glue/variable_names.h). Inside tf.function the kernels would be heard in the executor's order,
which differs from rank to rank; the order in which the program creates the Apply ops does not.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi import _hooks, _lib


def handle_name(handle: Any) -> tuple[str, str]:
    """(container, name) of an eager resource handle, as the kernels see it; cached on it."""
    known: tuple[str, str] | None = getattr(handle, "_tf_mpi_name", None)
    if known is None:
        from tensorflow.python.eager import context, execute
        from tensorflow.python.framework import ops

        with ops.init_scope():
            (result,) = execute.execute(
                b"TfMpiHandleName", 1, inputs=[handle], attrs=None, ctx=context.context()
            )
        container, name = result.numpy()
        known = (container.decode(), name.decode())
        handle._tf_mpi_name = known
    return known


def _external(graph: Any, tensor: Any) -> Any:
    """The eager tensor that `tensor`, inside nested function graphs, was captured from, or None."""
    while hasattr(graph, "outer_graph"):
        tensor = next((out for out, inside in reversed(graph.captures) if inside is tensor), None)
        if tensor is None or _is_eager(tensor):
            return tensor
        graph = tensor.graph
    return tensor if _is_eager(tensor) else None


def _is_eager(tensor: Any) -> bool:
    return hasattr(tensor, "_numpy_internal")


def apply_op_created(graph: Any, op: Any) -> None:
    """See _hooks.apply_op_created."""
    from tensorflow.python.framework import dtypes

    states = [t for t in op.inputs if t.dtype == dtypes.resource]
    trained = [handle for handle in (_external(graph, t) for t in states) if handle is not None]
    if trained and op.inputs[0].dtype == dtypes.resource:
        container, name = handle_name(trained[0])
        _lib.load().tfmpi_declare_variable(container.encode(), name.encode(), b"")
    _mark(graph, trained)
    _number(graph, op)


def _mark(graph: Any, trained: list[Any]) -> None:
    """Notes on `graph`, and on the graphs that it is nested in, that they train these handles."""
    while graph is not None and hasattr(graph, "outer_graph"):
        if not hasattr(graph, "_tf_mpi_trained"):
            graph._tf_mpi_trained = {}
        graph._tf_mpi_trained.update({id(handle): handle for handle in trained})
        graph._tf_mpi_in_step = False
        graph = graph.outer_graph


def function_nested(inner: Any) -> None:
    """`inner`, which trains or takes gradients, is called inside the graph being built."""
    from tensorflow.python.framework import ops

    if hasattr(inner, "_tf_mpi_trained"):
        _mark(ops.get_default_graph(), list(inner._tf_mpi_trained.values()))
    if hasattr(inner, "_tf_mpi_tape"):
        mark_tape()


def mark_tape() -> None:
    """A tape is entered while a function is traced: a call of the function is a forward pass."""
    from tensorflow.python.framework import ops

    graph = ops.get_default_graph()
    while graph is not None and hasattr(graph, "outer_graph"):
        graph._tf_mpi_tape = True
        graph = graph.outer_graph


def _number(graph: Any, op: Any) -> None:
    from tensorflow.core.framework import attr_value_pb2

    if not hasattr(graph, "_tf_mpi_counts"):
        graph._tf_mpi_counts = {}
    key = (op.type, op.inputs[0].op.name if hasattr(op.inputs[0], "op") else id(op.inputs[0]))
    count = graph._tf_mpi_counts.get(key, 0) + 1
    graph._tf_mpi_counts[key] = count
    if count > 1 and _hooks.size > 1:
        op._set_attr("_tf_mpi_occurrence", attr_value_pb2.AttrValue(i=count))
