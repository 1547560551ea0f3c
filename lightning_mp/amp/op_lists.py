"""The one table of O1: which function gets which treatment.

The names and their treatment are those of Apex's amp; rows with another origin are our additions,
and :data:`DIFFERENCES` says where O1 departs from Apex on purpose. The table is data: the function
mode looks its functions up with :func:`policies_by_function`, the C++ kernels derive operators from
the names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "DIFFERENCES",
    "NAMESPACES",
    "OP_POLICIES",
    "Difference",
    "OpPolicy",
    "Policy",
    "policies_by_function",
]


class Policy(Enum):
    """Treatment of the float32, float16 and bfloat16 tensors among the arguments of a call."""

    HALF = "half"
    """All are cast to the half dtype."""
    FP32 = "fp32"
    """All are cast to float32."""
    PROMOTE = "promote"
    """All are cast to float32 if half and float32 are mixed."""
    MATCH_FIRST = "match_first"
    """In place: all are cast to the dtype of the first, which is written to."""
    BANNED = "banned"
    """Refused if one is half, unless banned functions are allowed; then in float32."""
    BANNED_IN_PLACE = "banned_in_place"
    """Refused if the result would have to be written into a half tensor."""
    KEEP = "keep"
    """Nothing is cast, not even inside: the function runs in the dtypes it is given."""


@dataclass(frozen=True)
class OpPolicy:
    """One row of the table.

    Args:
        namespace: A key of :data:`NAMESPACES`.
        name: Name of the function there.
        policy: Its treatment.
        origin: ``"apex"`` if the row is Apex's, ``"superset"`` if it is an addition: another name
            of a listed function, or a function that :data:`DIFFERENCES` explains.
    """

    namespace: str
    name: str
    policy: Policy
    origin: Literal["apex", "superset"]


@dataclass(frozen=True)
class Difference:
    """A deliberate difference from Apex.

    Args:
        subject: Functions or arguments concerned.
        apex: What Apex does.
        here: What O1 does here.
        reason: Why.
    """

    subject: str
    apex: str
    here: str
    reason: str


NAMESPACES: dict[str, object] = {
    "torch": torch,
    "Tensor": Tensor,
    "functional": F,
    "linalg": torch.linalg,
    "special": torch.special,
}


def policies_by_function() -> dict[Callable, Policy]:
    """Resolve the table for this torch version, whose missing names are left out.

    Returns:
        The policy of each function object. A function that has several names is listed once.
    """
    return {
        getattr(NAMESPACES[row.namespace], row.name): row.policy
        for row in OP_POLICIES
        if hasattr(NAMESPACES[row.namespace], row.name)
    }


def _rows(
    namespace: str, policy: Policy, names: str, origin: Literal["apex", "superset"] = "apex"
) -> list[OpPolicy]:
    return [OpPolicy(namespace, name, policy, origin) for name in names.split()]


def _present(names: str, suffix: str = "", *, owner: object = Tensor) -> str:
    """Return those of the names that a tensor, or another owner, has too."""
    return " ".join(name + suffix for name in names.split() if hasattr(owner, name + suffix))


_HALF = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc prelu addmm "
    "addmv addr matmul mm mv addbmm baddbmm bmm"
)
_FP32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow cumprod cumsum "
    "dist norm prod std sum var renorm"
)
_PROMOTE = "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne"
_SEQUENCE_PROMOTE = "cat stack"
_RNN = "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"

_FUNCTIONAL_HALF = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc linear"
)
_FUNCTIONAL_FP32 = (
    "interpolate grid_sample softplus softmin log_softmax softmax gelu layer_norm group_norm "
    "local_response_norm normalize cosine_similarity poisson_nll_loss cosine_embedding_loss "
    "cross_entropy hinge_embedding_loss kl_div l1_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss multilabel_soft_margin_loss multi_margin_loss nll_loss "
    "binary_cross_entropy_with_logits smooth_l1_loss soft_margin_loss triplet_margin_loss ctc_loss"
)

_OPERATORS = (
    "__add__ __div__ __eq__ __ge__ __gt__ __le__ __lt__ __mul__ __ne__ __radd__ __rdiv__ __rmul__ "
    "__rsub__ __rtruediv__ __sub__ __truediv__"
)
_OPERATORS_IN_PLACE = "__iadd__ __idiv__ __imul__ __isub__ __itruediv__"

# torch has these names besides those of the lists; the operator below is the same.
_HALF_ALIASES = "__rmatmul__"
_FP32_ALIASES = "arccos arcsin"
_PROMOTE_ALIASES = (
    "sub subtract rsub multiply divide true_divide arctan2 greater greater_equal less less_equal "
    "not_equal"
)
_SEQUENCE_ALIASES = "concat concatenate"
_TORCH_BINDINGS_OF_FUNCTIONAL = (
    "softmax log_softmax layer_norm group_norm grid_sampler grid_sampler_2d grid_sampler_3d "
    "cosine_similarity poisson_nll_loss cosine_embedding_loss hinge_embedding_loss kl_div "
    "margin_ranking_loss binary_cross_entropy_with_logits triplet_margin_loss ctc_loss"
)

# Composites that run whole, in the dtypes they are given, though listed functions are inside.
_KEEP = (
    "logsumexp matrix_exp square ldexp sum_to_size cov corrcoef mvlgamma trapz trapezoid "
    "cumulative_trapezoid pairwise_distance chain_matmul matrix_power pinverse"
)

OP_POLICIES: tuple[OpPolicy, ...] = (
    *_rows("torch", Policy.HALF, _HALF),
    *_rows("torch", Policy.HALF, _RNN),
    *_rows("torch", Policy.FP32, _FP32),
    *_rows("torch", Policy.PROMOTE, f"{_PROMOTE} {_SEQUENCE_PROMOTE}"),
    *_rows("torch", Policy.BANNED_IN_PLACE, _present(_FP32, "_", owner=torch)),
    *_rows("functional", Policy.HALF, _FUNCTIONAL_HALF),
    *_rows("functional", Policy.FP32, _FUNCTIONAL_FP32),
    *_rows("functional", Policy.BANNED, "binary_cross_entropy"),
    *_rows("Tensor", Policy.HALF, f"__matmul__ {_present(_HALF)}"),
    *_rows("Tensor", Policy.MATCH_FIRST, _present(_HALF, "_")),
    *_rows("Tensor", Policy.FP32, f"__pow__ __rpow__ cpu {_present(_FP32)}"),
    *_rows("Tensor", Policy.BANNED_IN_PLACE, f"__ipow__ {_present(_FP32, '_')}"),
    *_rows("Tensor", Policy.PROMOTE, f"{_OPERATORS} {_present(_PROMOTE)}"),
    *_rows("Tensor", Policy.MATCH_FIRST, f"{_OPERATORS_IN_PLACE} {_present(_PROMOTE, '_')}"),
    # Additions.
    *_rows("torch", Policy.HALF, "einsum tensordot inner", "superset"),
    *_rows("Tensor", Policy.HALF, f"{_HALF_ALIASES} inner", "superset"),
    *_rows("linalg", Policy.HALF, "matmul multi_dot vecdot", "superset"),
    *_rows("functional", Policy.HALF, "prelu scaled_dot_product_attention", "superset"),
    *_rows("functional", Policy.FP32, "huber_loss rms_norm", "superset"),
    *_rows(
        "torch",
        Policy.FP32,
        f"rms_norm {_FP32_ALIASES} {_TORCH_BINDINGS_OF_FUNCTIONAL}",
        "superset",
    ),
    *_rows("Tensor", Policy.FP32, f"{_FP32_ALIASES} softmax log_softmax", "superset"),
    *_rows("linalg", Policy.FP32, "norm vector_norm matrix_norm", "superset"),
    *_rows("special", Policy.FP32, "expm1 erfinv softmax log_softmax", "superset"),
    *_rows("torch", Policy.BANNED_IN_PLACE, "arccos_ arcsin_", "superset"),
    *_rows("Tensor", Policy.BANNED_IN_PLACE, "arccos_ arcsin_", "superset"),
    *_rows("torch", Policy.PROMOTE, f"{_PROMOTE_ALIASES} vdot {_SEQUENCE_ALIASES}", "superset"),
    *_rows("Tensor", Policy.PROMOTE, f"{_present(_PROMOTE_ALIASES)} vdot", "superset"),
    *_rows("Tensor", Policy.MATCH_FIRST, _present(_PROMOTE_ALIASES, "_"), "superset"),
    *_rows("linalg", Policy.PROMOTE, "cross", "superset"),
    *_rows("functional", Policy.PROMOTE, "bilinear", "superset"),
    *_rows("torch", Policy.KEEP, _present(_KEEP, owner=torch), "superset"),
    *_rows("Tensor", Policy.KEEP, _present(_KEEP), "superset"),
    *_rows("functional", Policy.KEEP, "pairwise_distance", "superset"),
    *_rows("linalg", Policy.KEEP, "matrix_exp matrix_power pinv", "superset"),
)

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "float64 and complex tensors",
        "float64 is cast down to half or float32",
        "they are never cast",
        "who computes in double means it",
    ),
    Difference(
        "explicit dtype= and out=",
        "the arguments are cast all the same",
        "the call is left alone",
        "the dtype is the user's word",
    ),
    Difference(
        "other mixtures of dtypes in a promoting function",
        "NotImplementedError",
        "torch's own promotion",
        "float64 and integers mix in ordinary code",
    ),
    Difference(
        "devices",
        "CUDA tensors only",
        "tensors of every device",
        "a model does the same on each of them",
    ),
    Difference(
        "einsum, tensordot, inner, linalg.vecdot, multi_dot, scaled_dot_product_attention",
        "run in the incoming dtypes",
        "run in half",
        "they are matrix products, and torch.autocast does so too",
    ),
    Difference(
        "torch.softmax, torch.log_softmax, torch.layer_norm and other torch and Tensor names of "
        "listed functions of torch.nn.functional",
        "run in the incoming dtypes",
        "run as the functional ones do, in float32",
        "one function has one treatment under all its names",
    ),
    Difference(
        "sub, subtract, rsub, multiply, divide, vdot, concat and other names of promoters",
        "torch's own promotion, by which a zero-dimensional float32 tensor counts for nothing",
        "promote as their operators do",
        "one function has one treatment under all its names",
    ),
    Difference(
        "torch.linalg.norm, vector_norm, matrix_norm",
        "run in the incoming dtypes",
        "run in float32",
        "torch.norm is in float32",
    ),
    Difference(
        "rms_norm",
        "unknown",
        "runs in float32",
        "it is a norm as layer_norm is, and torch warns of half inputs with float32 weights",
    ),
    Difference(
        "huber_loss",
        "unknown",
        "runs in float32",
        "it is a loss as smooth_l1_loss is",
    ),
    Difference(
        "x **= y",
        "computes in float32 and rebinds x to a new float32 tensor",
        "refused for a half x, as pow_ is",
        "an in-place operator that does not write in place corrupts views",
    ),
    Difference(
        "torch.nn.RNN and the recurrent functions",
        "weights become views of one flat buffer, which fails on most layouts",
        "weights are cast one by one through the weight cache",
        "shared, packed, weight-normed and unflattened weights work",
    ),
)
