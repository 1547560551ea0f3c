"""Arguments for every function of O1's table."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_mp.amp.op_lists import NAMESPACES, OpPolicy

VECTOR, MATRIX, BATCH = (7,), (7, 7), (3, 7, 7)
IMAGE = (1, 2, 6, 6)
CLASSES = torch.arange(7) % 3


def function_of(row: OpPolicy) -> Callable:
    return getattr(NAMESPACES[row.namespace], row.name)


def sample_args(row: OpPolicy) -> tuple[Any, ...]:
    """FP32 arguments given by place, the same ones at each call; values are between 0.1 and 1.1."""
    generator = torch.Generator().manual_seed(13)

    def make(spec: Any) -> Any:
        if isinstance(spec, tuple):
            return torch.rand(spec, generator=generator) + 0.1
        return [make(item) for item in spec] if isinstance(spec, list) else spec

    given = SAMPLES.get(f"{row.namespace}.{row.name}") or SAMPLES.get(row.name.strip("_"))
    return tuple(make(spec) for spec in given or (MATRIX,))


def converted(args: Any, dtypes: tuple[torch.dtype, ...]) -> tuple[Any, ...]:
    """Copy arguments, the floating tensors among them in dtypes that take turns."""
    num_seen = 0

    def convert(value: Any) -> Any:
        nonlocal num_seen
        if isinstance(value, list):
            return [convert(item) for item in value]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        num_seen += 1
        return value.clone().to(dtypes[(num_seen - 1) % len(dtypes)])

    return tuple(convert(value) for value in args)


def num_floating(args: Any) -> int:
    return sum(
        num_floating(value)
        if isinstance(value, list)
        else isinstance(value, Tensor) and value.is_floating_point()
        for value in args
    )


def _rnn_cell(num_gates: int) -> tuple[Any, ...]:
    weights = [(num_gates * 7, 7), (num_gates * 7, 7), (num_gates * 7,), (num_gates * 7,)]
    hidden: Any = [(3, 7), (3, 7)] if num_gates == 4 else (3, 7)
    return ((3, 7), hidden, *weights)


def _rnn(num_gates: int) -> tuple[Any, ...]:
    weights = [(num_gates * 7, 7), (num_gates * 7, 7), (num_gates * 7,), (num_gates * 7,)]
    hidden: Any = [(1, 3, 7), (1, 3, 7)] if num_gates == 4 else (1, 3, 7)
    # Has biases, layers, dropout, training, bidirectional, batch first.
    return ((5, 3, 7), hidden, weights, True, 1, 0.0, False, False, False)


_PAIR = (MATRIX, MATRIX)
_PAIRWISE = (
    "matmul mm rmatmul inner dist atan2 arctan2 add radd iadd sub rsub isub subtract mul rmul imul "
    "multiply div truediv rtruediv itruediv divide true_divide rdiv idiv eq equal ge gt le lt ne "
    "greater greater_equal less less_equal not_equal cosine_similarity poisson_nll_loss "
    "hinge_embedding_loss huber_loss kl_div l1_loss mse_loss smooth_l1_loss "
    "multilabel_soft_margin_loss soft_margin_loss binary_cross_entropy_with_logits "
    "pairwise_distance"
)
_WITH_CLASSES = (MATRIX, CLASSES)
_CTC_LENGTHS = (torch.tensor([[1, 2], [1, 3]]), torch.tensor([5, 5]), torch.tensor([2, 2]))
_GRID_3D = ((1, 2, 5, 5, 5), (1, 3, 3, 3, 3))

# A tuple of numbers is a shape, a list holds several arguments in one, the rest is as it is.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "conv1d": ((1, 2, 6), (3, 2, 3)),
    "conv2d": (IMAGE, (3, 2, 3, 3)),
    "conv3d": ((1, 2, 5, 5, 5), (3, 2, 3, 3, 3)),
    "conv_transpose1d": ((1, 2, 6), (2, 3, 3)),
    "conv_transpose2d": (IMAGE, (2, 3, 3, 3)),
    "conv_transpose3d": ((1, 2, 5, 5, 5), (2, 3, 3, 3, 3)),
    "conv_tbc": ((5, 2, 3), (3, 3, 4), (4,)),
    "prelu": (MATRIX, (1,)),
    "addmm": (MATRIX, MATRIX, MATRIX),
    "addmv": (VECTOR, MATRIX, VECTOR),
    "addr": (MATRIX, VECTOR, VECTOR),
    "mv": (MATRIX, VECTOR),
    "addbmm": (MATRIX, BATCH, BATCH),
    "baddbmm": (BATCH, BATCH, BATCH),
    "bmm": (BATCH, BATCH),
    "linear": (MATRIX, MATRIX, VECTOR),
    "einsum": ("ij,jk->ik", MATRIX, MATRIX),
    "tensordot": (MATRIX, MATRIX, 1),
    "multi_dot": ([MATRIX, MATRIX, MATRIX],),
    "logsumexp": (MATRIX, 0),
    "rms_norm": (MATRIX, [7]),
    "torch.poisson_nll_loss": (MATRIX, MATRIX, True, False, 1e-8, 0),
    "chain_matmul": (MATRIX, MATRIX, MATRIX),
    "scaled_dot_product_attention": (BATCH, BATCH, BATCH),
    "lstm": _rnn(4),
    "gru": _rnn(3),
    "rnn_tanh": _rnn(1),
    "rnn_relu": _rnn(1),
    "lstm_cell": _rnn_cell(4),
    "gru_cell": _rnn_cell(3),
    "rnn_tanh_cell": _rnn_cell(1),
    "rnn_relu_cell": _rnn_cell(1),
    # The domain of these is [-1, 1].
    **{
        name: (torch.linspace(-0.9, 0.9, 13),)
        for name in ("acos", "asin", "arccos", "arcsin", "erfinv")
    },
    "pow": (MATRIX, 2.5),
    "ipow": (MATRIX, 2.5),
    "rpow": (MATRIX, 2.0),
    "cumprod": (MATRIX, 0),
    "cumsum": (MATRIX, 0),
    "renorm": (MATRIX, 2, 0, 1.0),
    "sum_to_size": (MATRIX, 1, 7),
    "mvlgamma": (torch.linspace(2, 3, 13), 2),
    "matrix_power": (MATRIX, 2),
    "addcdiv": (MATRIX, MATRIX, MATRIX),
    "addcmul": (MATRIX, MATRIX, MATRIX),
    "cross": ((7, 3), (7, 3)),
    "bilinear": ((2, 3), (2, 4), (5, 3, 4)),
    "dot": (VECTOR, VECTOR),
    "vdot": (VECTOR, VECTOR),
    "vecdot": (MATRIX, MATRIX),
    "ldexp": (MATRIX, torch.ones(7, dtype=torch.int64)),
    **dict.fromkeys(("cat", "stack", "concat", "concatenate"), ([MATRIX, MATRIX],)),
    **dict.fromkeys(_PAIRWISE.split(), _PAIR),
    "softmax": (MATRIX, 1),
    "softmin": (MATRIX, 1),
    "log_softmax": (MATRIX, 1),
    "layer_norm": (MATRIX, [7], VECTOR, VECTOR),
    "torch.group_norm": ((2, 4, 3), 2),
    "group_norm": ((2, 4, 3), 2),
    "interpolate": (IMAGE, 13),
    "functional.grid_sample": (IMAGE, (1, 3, 3, 2), "bilinear", "zeros", False),
    "grid_sampler": (IMAGE, (1, 3, 3, 2), 0, 0, False),
    "grid_sampler_2d": (IMAGE, (1, 3, 3, 2), 0, 0, False),
    "grid_sampler_3d": (*_GRID_3D, 0, 0, False),
    "local_response_norm": (IMAGE, 2),
    "cosine_embedding_loss": (MATRIX, MATRIX, torch.ones(7, dtype=torch.int64)),
    "cross_entropy": _WITH_CLASSES,
    "nll_loss": _WITH_CLASSES,
    "multi_margin_loss": _WITH_CLASSES,
    "margin_ranking_loss": (VECTOR, VECTOR, torch.ones(7, dtype=torch.int64)),
    "multilabel_margin_loss": ((3, 4), torch.tensor([[0, 1, -1, 2]] * 3)),
    "triplet_margin_loss": (MATRIX, MATRIX, MATRIX),
    "ctc_loss": ((5, 2, 4), *_CTC_LENGTHS),
    "binary_cross_entropy": (torch.linspace(0.1, 0.9, 7), torch.linspace(0.1, 0.9, 7)),
}
