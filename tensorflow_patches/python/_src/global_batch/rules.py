"""The rule for each op: families of ops, and how the dependence of an output is computed.

The output of an op without a family is UNKNOWN, except where the inputs decide for every op: if one
is mixed or a gradient, or all are constants, perhaps with the current sample of a loop (of_node).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.average import carrier
from tensorflow.mpi._src.global_batch import rules_arithmetic as arithmetic
from tensorflow.mpi._src.global_batch import rules_creation as creation
from tensorflow.mpi._src.global_batch import rules_functions as functions
from tensorflow.mpi._src.global_batch import rules_indices as indices
from tensorflow.mpi._src.global_batch import rules_layers as layers
from tensorflow.mpi._src.global_batch import rules_layout as layout
from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import CONST, UNKNOWN, Dependence, Kind, of_numbers
from tensorflow.mpi._src.global_batch.node import Node, drawn_mark

# The output depends on the samples as the first input does.
_AS_IS = """
Bitcast CheckNumerics DebugGradientIdentity Identity PlaceholderWithDefault
PreventGradient Snapshot StopGradient XlaSharding Conj Real Imag
""".split()
# Elementwise, on one tensor or several.
_ELEMENTWISE = """
Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e Bucketize Ceil
ComplexAbs Cos Cosh Dawsn Digamma Elu Erf Erfc Erfinv Exp Expint Expm1 Floor FresnelCos FresnelSin
Inv IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Ndtri Relu Relu6 Rint Round
Rsqrt Selu Sigmoid Sin Sinh Softplus Softsign Spence Sqrt Tan Tanh Invert PopulationCount
Atan2 ApproximateEqual Betainc BitwiseAnd BitwiseOr BitwiseXor ClipByValue Complex Cross Equal
FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FloorDiv FloorMod Greater GreaterEqual Igamma
IgammaGradA Igammac LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod NextAfter
NotEqual Polygamma Polar Pow RightShift SquaredDifference TruncateDiv TruncateMod Xdivy Xlog1py
Xlogy Zeta
AsString DecodeBase64 EncodeBase64 RegexFullMatch RegexReplace StaticRegexFullMatch
StaticRegexReplace StringJoin StringLength StringLower StringStrip StringToHashBucket
StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Substr
""".split()
# Linear in the upstream gradient, which is the input with this index.
_GRADIENTS = {
    **dict.fromkeys("""
    EluGrad FakeQuantWithMinMaxArgsGradient LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad
    SoftsignGrad
    """.split(), 0),
    **dict.fromkeys("InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad".split(), 1),
}  # fmt: skip
_REDUCTIONS = "All Any EuclideanNorm Max Mean Min Prod Sum".split()
# Independent for each sample along the first dimension of the inputs with these indices: images,
# losses, … The other inputs must be constant.
_LAYERS = {
    **dict.fromkeys("""
    AdjustHue AdjustSaturation AvgPool AvgPool3D DepthToSpace Dilation2D ExtractImagePatches
    ExtractVolumePatches HSVToRGB ImageProjectiveTransformV2 LRN MaxPool MaxPool3D MaxPoolV2
    RGBToHSV ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor SpaceToDepth
    """.split(), (0,)),
    **dict.fromkeys("""
    InTopK InTopKV2 LRNGrad ResizeBicubicGrad ResizeBilinearGrad ReverseSequence
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
    """.split(), (0, 1)),
    **dict.fromkeys("MaxPool3DGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradV2".split(), (0, 1, 2)),
    **dict.fromkeys("AvgPool3DGrad AvgPoolGrad".split(), (1,)),
    **dict.fromkeys("LookupTableFindV2 LookupTableFind".split(), (1,)),
    "ImageProjectiveTransformV3": (0, 1),
    "ResizeNearestNeighborGrad": (0,),
}  # fmt: skip
_CONVOLUTIONS = {  # the index of the samples; input 1 is the kernel
    **dict.fromkeys("Conv Conv2D Conv3D DepthwiseConv2dNative".split(), 0),
    **dict.fromkeys("""
    Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput
    """.split(), 2),
}  # fmt: skip
_KERNEL_GRADIENTS = """
Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter
""".split()
# By the number of last dimensions on which the ops work.
_INNER = {
    1: "BatchFFT FFT IFFT RFFT IRFFT MatrixDiag MatrixDiagV2 MatrixDiagV3 NthElement".split(),
    2: """
    BatchMatrixInverse Cholesky CholeskyGrad FFT2D IFFT2D IRFFT2D LogMatrixDeterminant LuV
    MatrixBandPart MatrixDeterminant MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
    MatrixExponential MatrixInverse MatrixLogarithm MatrixSolve MatrixSolveLs MatrixSquareRoot
    MatrixTriangularSolve Qr RFFT2D SelfAdjointEigV2 Svd BandedTriangularSolve TridiagonalSolve
    """.split(),
    3: ["AdjustContrastv2"],
}
_RANDOM = """
RandomGamma RandomStandardNormal RandomUniform RandomUniformInt StatelessRandomNormal
StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformFullInt
StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessRandomUniformIntV2
StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 TruncatedNormal
StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformInt
ParameterizedTruncatedNormal RandomPoissonV2 RandomShuffle StatefulRandomBinomial
""".split()
# Ops that draw from a sequence, their own or a generator's, or advance it.
SEQUENCES = {
    *(name for name in _RANDOM if not name.startswith("Stateless")),
    *("Multinomial", "RngReadAndSkip", "RngSkip", "TfMpiRandomState"),
}
_LISTS: dict[str, Callable[[Node], Dependence]] = {
    "TensorListFromTensor": functions.from_tensor,
    "TensorListGetItem": functions.item,
    "TensorListSetItem": functions.with_item,
    "TensorListPushBack": functions.pushed,
    "TensorListPopBack": functions.taken,
    "TensorListResize": functions.taken,
    "TensorListStack": functions.stacked,
    "TensorListLength": functions.length,
    "TensorListElementShape": functions.length,
    "TensorListConcatV2": functions.concatenated,
}
# Stateful, but with the same outputs on every rank for the same inputs, as states are equal.
_STATEFUL = {
    *_RANDOM, "ResourceGather", "ResourceGatherNd", "LookupTableFindV2", "MutableHashTableV2",
    "RngReadAndSkip", "Multinomial", "Empty", "VariableShape",
}  # fmt: skip
_CONSTANTS = {"Const", "ReadVariableOp", "VarHandleOp", "VariableV2", "HashTableV2"}
_V1_LOOPS = {"Enter", "Exit", "Merge", "NextIteration", "RefEnter", "RefMerge"}


def is_end(op: Any) -> bool:
    """Whether the analysis ends at `op`: following a loop of compat.v1 would lead back to it."""
    return op.type in _V1_LOOPS


def is_drawn(op: Any) -> bool:
    """Whether a mark describes the output of `op`, so that its inputs need no analysis."""
    return op.type == "Identity" and _drawn(op) is not None


def of_node(node: Node) -> Dependence:
    name, deps = node.type, node.deps
    if name in _CONSTANTS:
        return _constant(node)
    if name == "Identity" and (drawn := _drawn(node.op)) is not None:
        return drawn
    if name == "Rank":
        rank = node.rank(0)
        return CONST if rank is None else of_numbers(sizes.of_constant(np.array(rank)))
    if name in ("Shape", "ShapeN", "Size"):
        return layout.shape(node)
    if name in ("TensorListReserve", "EmptyTensorList"):
        return functions.empty_list(node)
    folded = sizes.folded(node.op, [one.numbers for one in deps], node.output.value_index)
    rule = _RULES.get(name)
    # A constant divisor may be the static number of samples.
    may_be_mean = node.rows is not None and rule is arithmetic.divide
    if folded is not None and not may_be_mean:
        return of_numbers(folded)
    if name == "IdentityN":
        return CONST if carrier.averaged_names(node.op) else deps[node.output.value_index]
    if name.startswith("TfMpi"):
        return UNKNOWN
    if name in ("ZerosLike", "OnesLike"):
        return arithmetic.zeros_like(node)
    if name == "RaggedTensorToTensor":
        return creation.padded_words(node)
    for worst in (Kind.MIXED, Kind.UNKNOWN):
        if any(one.base is worst for one in deps):
            # The divisor may be the maximum of a sum and a constant, which is MIXED.
            return rule(node) if rule in _QUOTIENTS else Dependence(worst)  # type: ignore[misc]
    if any(one.base is Kind.GRADIENT for one in deps):
        alone = all(one.base is Kind.GRADIENT or one.is_const for one in deps)
        return Dependence(Kind.GRADIENT if alone else Kind.MIXED)
    if node.op.op_def.is_stateful and name not in _STATEFUL:
        return UNKNOWN
    if deps and all(one.is_const for one in deps) and not (may_be_mean or rule in _OF_CONSTANTS):
        return CONST
    if name not in _LISTS and _is_on_current_sample(node):
        return arithmetic.on_current_sample(node)
    return UNKNOWN if rule is None else rule(node)


def _drawn(op: Any) -> Dependence | None:
    """The dependence of this rank's rows of a draw for the whole batch."""
    mark = drawn_mark(op)
    if mark is None:
        return None
    axis, factor, outer, _ = mark
    if outer > 1:
        return Dependence(Kind.ROWS, axis, sizes.number(outer), sizes.number(factor // outer))
    return Dependence(Kind.ROWS, axis, inner=sizes.number(factor), any_layout=True)


def _is_on_current_sample(node: Node) -> bool:
    """Whether inputs belong to the current sample of a loop, and all others are constants."""
    rows = [one for one in node.deps if not one.is_const]
    return bool(rows) and all(
        one.base is Kind.ROWS and one.axis < 0 and one.is_plain and not one.mask for one in rows
    )


def _constant(node: Node) -> Dependence:
    shape = node.output.shape
    if node.type != "Const" or not shape.is_fully_defined():
        return CONST
    if shape.num_elements() > sizes.MAX_ELEMENTS:
        return CONST
    known = sizes.of_constant(tf.get_static_value(node.output))
    return CONST if known is None else of_numbers(known)


_RULES: dict[str, Callable[[Node], Dependence]] = {
    **dict.fromkeys(_AS_IS, arithmetic.as_is),
    **dict.fromkeys(_ELEMENTWISE, arithmetic.elementwise),
    **dict.fromkeys(("Add", "AddN", "AddV2", "AccumulateNV2", "BiasAdd", "Sub"), arithmetic.add),
    **dict.fromkeys(("Mul", "MulNoNan", "Neg"), arithmetic.multiply),
    **dict.fromkeys(("Div", "DivNoNan", "RealDiv"), arithmetic.divide),
    **dict.fromkeys(_REDUCTIONS, arithmetic.reduce),
    **{name: arithmetic.gradient(first) for name, first in _GRADIENTS.items()},
    **{name: layers.layer(*which) for name, which in _LAYERS.items()},
    **{name: layers.convolution(samples) for name, samples in _CONVOLUTIONS.items()},
    **dict.fromkeys(_KERNEL_GRADIENTS, layers.kernel_gradient),
    **{name: layers.inner(core) for core, names in _INNER.items() for name in names},
    **dict.fromkeys(_RANDOM, creation.drawn),
    **_LISTS,
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), layers.batch_norm),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopK", "TopKV2"), layers.along_last_dim),
    **dict.fromkeys(("ArgMax", "ArgMin"), layers.arg_max),
    **dict.fromkeys(("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"), layout.along(1)),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), layers.matmul),
    **dict.fromkeys(("Einsum", "XlaEinsum"), layers.einsum),
    **dict.fromkeys(("GatherV2", "ResourceGather"), indices.gather),
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), indices.gather_nd),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), layout.padded),
    **dict.fromkeys(
        ("TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate"), indices.scattered_into
    ),
    **dict.fromkeys(("LowerBound", "UpperBound"), indices.searched),
    **dict.fromkeys(("Select", "SelectV2"), indices.select),
    **{f"QuantizeAndDequantizeV{version}": arithmetic.quantized for version in (2, 3, 4)},
    **dict.fromkeys(("DenseBincount", "HistogramFixedWidth"), indices.counts),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND"), layout.blocks),
    **dict.fromkeys(("BroadcastTo", "BroadcastArgs"), creation.broadcast),
    **dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), layers.cudnn_rnn),
    **dict.fromkeys(("Empty", "Fill"), creation.fill),
    "BiasAddGrad": arithmetic.bias_gradient,
    "Cast": arithmetic.cast,
    "ConcatV2": layout.concat,
    "EnsureShape": arithmetic.ensured,
    "ExpandDims": layout.expand,
    "L2Loss": arithmetic.l2_loss,
    "OneHot": indices.one_hot,
    "Pack": layout.pack,
    "Range": creation.range_,
    "Reciprocal": arithmetic.reciprocal,
    "Reshape": layout.reshape,
    "Roll": layout.along(2),
    "ScatterNd": indices.scatter,
    "Sign": arithmetic.sign,
    "Slice": indices.slice_,
    "Split": layout.split(1, 0),
    "SplitV": layout.split(0, 2),
    "Square": arithmetic.square,
    "Squeeze": layout.squeeze,
    "StridedSlice": indices.strided_slice,
    "StridedSliceGrad": indices.unsliced,
    "Tile": creation.tile_any,
    "Transpose": layout.transpose,
    "Unpack": layout.unpack,
    "UnsortedSegmentSum": indices.segments,
    "StringSplitV2": creation.string_split,
    "Where": indices.where,
}
_QUOTIENTS = {arithmetic.divide, arithmetic.reciprocal}
# Rules that apply even if all inputs are constants.
_OF_CONSTANTS = {creation.fill, creation.broadcast, arithmetic.as_is, arithmetic.ensured}
