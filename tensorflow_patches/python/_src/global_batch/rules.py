"""Which rule is whose: the ops that are known, and how one makes a kind of its inputs' kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensorflow.mpi._src.global_batch import rules_numbers as numbers
from tensorflow.mpi._src.global_batch import rules_places as places
from tensorflow.mpi._src.global_batch import rules_shapes as shapes
from tensorflow.mpi._src.global_batch.kind import ROWS, Kind

_LINEAR_UNARY = {
    "Identity", "Neg", "StopGradient", "PreventGradient", "CheckNumerics", "Snapshot",
    "EnsureShape", "DebugGradientIdentity",
}  # fmt: skip
_UNARY = {
    "Abs", "Acos", "Asin", "Atan", "Ceil", "Cos", "Cosh", "Digamma", "Elu", "Erf", "Erfc", "Exp",
    "Expm1", "Floor", "Inv", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "Lgamma", "Log", "Log1p",
    "LogicalNot", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu", "Sigmoid",
    "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "Tan", "Tanh",
}  # fmt: skip
_SUMS = {"Add", "AddN", "AddV2", "BiasAdd", "Sub"}
_PRODUCTS = {"Mul", "MulNoNan"}
QUOTIENTS = {"Div", "DivNoNan", "RealDiv"}
_TOGETHER = {
    "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "ClipByValue", "Equal", "FloorDiv",
    "FloorMod", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr",
    "Maximum", "Minimum", "Mod", "NotEqual", "Pow", "Select", "SelectV2", "SquaredDifference",
    "TruncateDiv", "TruncateMod", "Xdivy", "Xlog1py", "Xlogy",
}  # fmt: skip
_REDUCTIONS = {"All", "Any", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"}
_SOURCES = {"Const", "ReadVariableOp", "VarHandleOp", "Rank"}
# (operand with samples first, others that must be constant)
_LAYERS = {
    "AvgPool", "AvgPool3D", "Conv", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool",
    "MaxPool3D", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor",
}  # fmt: skip
_RANDOM = {
    "Multinomial", "RandomGamma", "RandomStandardNormal", "RandomUniform", "RandomUniformInt",
    "StatelessRandomNormalV2", "StatelessRandomUniformV2", "StatelessTruncatedNormalV2",
    "TruncatedNormal",
}  # fmt: skip


def of_op(op: Any, kinds: Sequence[Kind], output: Any) -> Kind:
    """What `op` makes of inputs of these kinds, as its output `output`."""
    name = op.type
    if name in _SOURCES:
        return Kind.CONST
    if name in ("Shape", "ShapeN", "Size"):
        at = kinds[output.value_index if name == "ShapeN" else 0]
        if at in ROWS or at in (Kind.PARTS, Kind.SHIFTED, Kind.COLUMNS, Kind.PLACES):
            return Kind.SIZE
        unknown = {Kind.MIXED: Kind.UNKNOWN, Kind.UNKNOWN: Kind.UNKNOWN}
        return {Kind.SELECTED: Kind.SUM, **unknown}.get(at, Kind.CONST)
    if name == "IdentityN":
        return kinds[output.value_index]
    if name.startswith("TfMpi"):
        return Kind.UNKNOWN
    if name in ("StridedSlice", "Unpack") and kinds[0] is Kind.SIZE:
        return places.length(op, output)
    if not kinds:
        return Kind.UNKNOWN
    if Kind.MIXED in kinds and name not in ("ZerosLike", "OnesLike"):
        return Kind.MIXED
    if Kind.UNKNOWN in kinds:
        return Kind.UNKNOWN
    if Kind.PLACES in kinds:
        return places.used(op, list(kinds))
    if all(kind is Kind.CONST for kind in kinds):
        return Kind.CONST
    rule = _RULES.get(name)
    return Kind.UNKNOWN if rule is None else rule(op, list(kinds))


def _table(names: Iterable[str], rule: Callable[[Any, list[Kind]], Kind]) -> dict[str, Any]:
    return dict.fromkeys(names, rule)


_RULES: dict[str, Callable[[Any, list[Kind]], Kind]] = {
    **_table(_LINEAR_UNARY, numbers.linear),
    **_table(_UNARY, numbers.unary),
    **_table(_SUMS, numbers.add),
    **_table(_PRODUCTS, numbers.multiply),
    **_table(QUOTIENTS, numbers.divide),
    **_table(_TOGETHER, numbers.together),
    **_table(_REDUCTIONS, numbers.reduce),
    **_table(_LAYERS, shapes.first_of_constants),
    **_table(_RANDOM, shapes.of_size),
    **_table(("ZerosLike", "OnesLike"), numbers.likes),
    **_table(("Softmax", "LogSoftmax", "TopK", "TopKV2"), shapes.on_last_axis),
    **_table(("SoftmaxCrossEntropyWithLogits",), shapes.cross_entropy),
    **_table(("SparseSoftmaxCrossEntropyWithLogits",), shapes.cross_entropy),
    **_table(("ArgMax", "ArgMin", "Cumsum", "Cumprod", "ReverseV2"), shapes.along(1)),
    **_table(("Roll",), shapes.along(2)),
    **_table(("MatMul", "BatchMatMul", "BatchMatMulV2"), shapes.matmul),
    **_table(("GatherV2", "ResourceGather", "GatherNd"), shapes.gather),
    **_table(("Tile", "Pad", "PadV2"), shapes.repeat),
    "BroadcastTo": shapes.broadcast,
    "Cast": numbers.cast,
    "ConcatV2": shapes.concat,
    "Einsum": shapes.einsum,
    "ExpandDims": shapes.expand,
    "Fill": shapes.of_size,
    "L2Loss": numbers.l2_loss,
    "OneHot": shapes.one_hot,
    "Pack": shapes.pack,
    "Range": places.numbers,
    "Reshape": shapes.reshape,
    "Squeeze": shapes.squeeze,
    "StridedSlice": shapes.slice,
    "Transpose": shapes.transpose,
    "Where": shapes.where,
}
