"""Which operators of torch's dispatcher stand for the functions of O1's table.

:mod:`lightning_mp.amp.op_lists` says which function gets which treatment; this module only says
what the function is called below Python, so that the C++ kernels take their policies from the same
table. What cannot be reached from there is in :data:`NATIVE_DIFFERENCES`.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from lightning_mp.amp.op_lists import OP_POLICIES, OpPolicy, Policy

__all__ = [
    "NATIVE_DIFFERENCES",
    "STOCK_DIFFERENCES",
    "DispatcherOp",
    "NativeDifference",
    "dispatcher_ops",
    "operators_of",
]


@dataclass(frozen=True)
class DispatcherOp:
    """One operator of the dispatcher with its treatment.

    Args:
        name: Qualified name, as ``"aten::pow"``.
        overload: Name of the overload; empty for the first one.
        policy: Its treatment.
        origin: Where the treatment comes from: ``"apex"``, ``"superset"``, or ``"keep"`` for a
            composite operator that is kept whole.
    """

    name: str
    overload: str
    policy: Policy
    origin: Literal["apex", "superset", "keep"]


@dataclass(frozen=True)
class NativeDifference:
    """What the kernels do otherwise than the function mode does.

    Args:
        namespace: Namespace of the function in ``op_lists``.
        name: Its name there.
        device_types: Where it differs; empty means everywhere.
        native: What the kernels do.
        reason: Why.
    """

    namespace: str
    name: str
    device_types: tuple[str, ...]
    native: str
    reason: str


def operators_of(row: OpPolicy) -> tuple[str, ...]:
    """Name the operators of one row of the table.

    Args:
        row: A row of ``op_lists.OP_POLICIES``.

    Returns:
        The operators without their namespace, as ``"pow.Tensor_Scalar"``; none if the function
        does not reach the dispatcher in a form of its own.

    Example:
        >>> operators_of(OpPolicy("Tensor", "__iadd__", Policy.MATCH_FIRST, "apex"))
        ('add_.Tensor',)
    """
    qualified = f"{row.namespace}.{row.name}"
    base = row.name.removesuffix("_")
    if qualified in _OPERATORS:
        operators = _OPERATORS[qualified]
    elif row.name in _OPERATORS:
        operators = _OPERATORS[row.name]
    elif row.name.endswith("_") and base in _OVERLOAD_IN_PLACE:
        operators = f"{row.name}.{_OVERLOAD_IN_PLACE[base]}"
    else:
        operators = row.name
    return tuple(operators.split())


@cache
def dispatcher_ops() -> tuple[DispatcherOp, ...]:
    """Derive the operators and their treatment from ``op_lists``.

    Returns:
        One entry per operator, sorted by name.

    Raises:
        RuntimeError: If the table gives one operator two treatments.
    """
    found: dict[str, DispatcherOp] = {}
    for row in OP_POLICIES:
        for operator in operators_of(row):
            name, _, overload = operator.partition(".")
            origin = "keep" if row.policy is Policy.KEEP else row.origin
            entry = DispatcherOp(f"aten::{name}", overload, row.policy, origin)
            known = found.setdefault(operator, entry)
            if known.policy is not entry.policy:
                raise RuntimeError(
                    f"policy of {operator} = {known.policy.value} and {entry.policy.value}; one is "
                    f"allowed; mend the row of {row.namespace}.{row.name} in op_lists"
                )
    return tuple(found[operator] for operator in sorted(found))


# In-place forms whose tensor overload has a name.
_OVERLOAD_IN_PLACE = dict.fromkeys(
    ["add", "sub", "mul", "div", "eq", "ge", "gt", "le", "lt", "ne"], "Tensor"
)

_UPSAMPLE = (
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
_NORM = "norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dtype norm.ScalarOpt_dim_dtype"
_MATRIX_NORM = "linalg_matrix_norm linalg_matrix_norm.str_ord"
# vmap takes the composites apart above the Autocast keys, so their insides are listed too.
_SOFTMAX = "softmax.int _softmax"
_LOG_SOFTMAX = "log_softmax.int _log_softmax"

# Functions whose operator is not simply their name. A name that only forwards to another function,
# as arctan2 does to atan2, stands for the operators of that one.
_OPERATORS: dict[str, str] = {
    # Products.
    "conv1d": "conv1d conv1d.padding",
    "conv2d": "conv2d conv2d.padding",
    "conv3d": "conv3d conv3d.padding",
    "conv_transpose2d": "conv_transpose2d.input",
    "conv_transpose3d": "conv_transpose3d.input",
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "linalg.matmul": "matmul",
    "linalg.multi_dot": "linalg_multi_dot",
    "linalg.vecdot": "linalg_vecdot",
    # Recurrent functions, padded and packed.
    "lstm": "lstm.input lstm.data",
    "gru": "gru.input gru.data",
    "rnn_tanh": "rnn_tanh.input rnn_tanh.data",
    "rnn_relu": "rnn_relu.input rnn_relu.data",
    # Pointwise functions and reductions.
    "arccos": "acos",
    "arcsin": "asin",
    "arccos_": "acos_",
    "arcsin_": "asin_",
    "special.expm1": "expm1",
    "special.erfinv": "erfinv",
    "pow": "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar",
    "__pow__": "pow.Tensor_Scalar pow.Tensor_Tensor",
    "__rpow__": "pow.Scalar",
    "pow_": "pow_.Scalar pow_.Tensor",
    "__ipow__": "pow_.Scalar pow_.Tensor",
    "norm": f"{_NORM} linalg_vector_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim",
    "linalg.norm": f"linalg_vector_norm {_MATRIX_NORM}",
    "linalg.vector_norm": "linalg_vector_norm",
    "linalg.matrix_norm": _MATRIX_NORM,
    "prod": "prod prod.dim_int",
    "std": "std std.dim std.correction",
    "var": "var var.dim var.correction",
    "sum": "sum sum.dim_IntList",
    # Promotion.
    "add": "add.Tensor",
    "__add__": "add.Tensor",
    "__radd__": "add.Tensor",
    "__iadd__": "add_.Tensor",
    "sub": "sub.Tensor",
    "subtract": "sub.Tensor",
    "subtract_": "sub_.Tensor",
    "rsub": "rsub.Tensor",
    "__sub__": "sub.Tensor",
    "__rsub__": "rsub.Tensor",
    "__isub__": "sub_.Tensor",
    "mul": "mul.Tensor",
    "multiply": "mul.Tensor",
    "multiply_": "mul_.Tensor",
    "__mul__": "mul.Tensor",
    "__rmul__": "mul.Tensor",
    "__imul__": "mul_.Tensor",
    "div": "div.Tensor div.Tensor_mode",
    "div_": "div_.Tensor div_.Tensor_mode",
    "divide": "div.Tensor div.Tensor_mode",
    "divide_": "div_.Tensor div_.Tensor_mode",
    "true_divide": "div.Tensor",
    "true_divide_": "div_.Tensor",
    "__div__": "div.Tensor",
    "__rdiv__": "mul.Tensor",
    "__truediv__": "div.Tensor",
    "__rtruediv__": "mul.Tensor",
    "__idiv__": "div_.Tensor",
    "__itruediv__": "div_.Tensor",
    **{
        alias: operator
        for name, long_name in {
            "eq": "eq",
            "ne": "not_equal",
            "lt": "less",
            "le": "less_equal",
            "gt": "greater",
            "ge": "greater_equal",
        }.items()
        for alias, operator in {
            name: f"{name}.Tensor",
            f"__{name}__": f"{name}.Tensor",
            long_name: f"{name}.Tensor",
            f"{long_name}_": f"{name}_.Tensor",
        }.items()
    },
    "arctan2": "atan2",
    "arctan2_": "atan2_",
    "linalg.cross": "linalg_cross",
    "concat": "cat",
    "concatenate": "cat",
    # Functions of torch.nn.functional.
    "interpolate": _UPSAMPLE,
    "grid_sample": "grid_sampler",
    "softmax": _SOFTMAX,
    "softmin": _SOFTMAX,
    "log_softmax": _LOG_SOFTMAX,
    "layer_norm": "layer_norm native_layer_norm",
    "group_norm": "group_norm native_group_norm",
    # Python around listed operators.
    "normalize": "linalg_vector_norm",
    "local_response_norm": "pow.Tensor_Scalar",
    "cross_entropy": "cross_entropy_loss",
    "nll_loss": "nll_loss nll_loss2d nll_loss_nd",
    "ctc_loss": "ctc_loss.IntList ctc_loss.Tensor",
    # Composites that stay whole.
    "ldexp": "ldexp.Tensor",
    "trapz": "trapz.x trapz.dx",
    "trapezoid": "trapezoid.x trapezoid.dx",
    "cumulative_trapezoid": "cumulative_trapezoid.x cumulative_trapezoid.dx",
    "pinverse": "pinverse linalg_pinv",
    "matrix_power": "matrix_power linalg_matrix_power",
    "linalg.matrix_power": "linalg_matrix_power",
    "linalg.matrix_exp": "linalg_matrix_exp",
    "linalg.pinv": (
        "linalg_pinv linalg_pinv.atol_rtol_tensor linalg_pinv.atol_rtol_float "
        "linalg_pinv.rcond_tensor"
    ),
    # No operator of their own: see NATIVE_DIFFERENCES.
    "Tensor.cpu": "",
    "functional.multilabel_soft_margin_loss": "",
}

_STOCK_SLOT = "torch.autocast has the slot"

NATIVE_DIFFERENCES: tuple[NativeDifference, ...] = (
    NativeDifference(
        "functional",
        "binary_cross_entropy",
        ("cpu",),
        "computes in float32, as if banned functions were allowed",
        _STOCK_SLOT,
    ),
    NativeDifference(
        "functional",
        "binary_cross_entropy",
        ("cuda",),
        "refused for every dtype and even if allowed, by torch.autocast's own error",
        _STOCK_SLOT,
    ),
    NativeDifference("torch", "pinverse", ("cpu",), "computes in float32", _STOCK_SLOT),
    NativeDifference("Tensor", "pinverse", ("cpu",), "computes in float32", _STOCK_SLOT),
    NativeDifference(
        "functional",
        "grid_sample",
        ("cuda",),
        "half if both arguments are",
        _STOCK_SLOT,
    ),
    NativeDifference("torch", "chain_matmul", ("cuda",), "computes in half", _STOCK_SLOT),
    NativeDifference("torch", "logsumexp", ("cuda",), "computes in float32", _STOCK_SLOT),
    NativeDifference("Tensor", "logsumexp", ("cuda",), "computes in float32", _STOCK_SLOT),
    NativeDifference(
        "torch",
        "tensordot",
        ("cuda",),
        "promotes, then computes in half all the same",
        _STOCK_SLOT,
    ),
    NativeDifference(
        "Tensor",
        "cpu",
        (),
        "moves the tensor in the dtype it has",
        "copies between devices have no Autocast slot",
    ),
    NativeDifference(
        "Tensor",
        "__rtruediv__",
        (),
        "float32 for a half tensor",
        "it is a reciprocal below Python, which runs in float32",
    ),
    NativeDifference(
        "Tensor",
        "__rdiv__",
        (),
        "float32 for a half tensor",
        "it is a reciprocal below Python, which runs in float32",
    ),
    NativeDifference(
        "functional",
        "multilabel_soft_margin_loss",
        (),
        "float32 result of a logsigmoid in the incoming dtype",
        "Python around operators that are not listed",
    ),
    NativeDifference(
        "functional",
        "interpolate",
        (),
        'mode="area" runs in the incoming dtype',
        "its operator is adaptive average pooling, which is not listed",
    ),
)

# Operators whose slot torch.autocast has, with another treatment than ours; by device type.
STOCK_DIFFERENCES: dict[str, dict[str, str]] = {
    "cpu": {"binary_cross_entropy": "fp32", "pinverse": "fp32"},
    "cuda": {
        "binary_cross_entropy": "refused",
        "chain_matmul": "half",
        "grid_sampler": "promote",
        "logsumexp": "fp32",
        "tensordot": "promote",
    },
    "privateuse1": {},
}
