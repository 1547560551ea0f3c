"""Sample arguments of every function in the table of O1, in float32."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_mp.amp.torch_calls import map_call

_NAMES = (
    "add sub rsub mul div eq ge gt le lt ne equal subtract multiply divide true_divide greater "
    "greater_equal less less_equal not_equal arctan2 atan2 truediv itruediv rtruediv radd rmul "
    "rdiv iadd isub imul idiv"
)
TWO_OPERANDS = frozenset(_NAMES.split())


def sample(namespace: str, name: str) -> tuple[Any, ...]:
    """Return positional arguments of a row of the table, the same on each call.

    Args:
        namespace: Its namespace.
        name: Its name there.
    """
    torch.manual_seed(5)
    plain = name.strip("_") if name.startswith("__") else name.rstrip("_")
    if plain in TWO_OPERANDS:
        return _square(), _square() * 2
    if (namespace, name) == ("torch", "poisson_nll_loss"):
        return *_pair(), True, False, 1e-8, 1
    make = _SAMPLES.get(plain)
    return make() if make else (_square(),)


def convert(args: tuple[Any, ...], dtypes: tuple[torch.dtype, ...]) -> tuple[Any, ...]:
    """Copy arguments, the floating tensors in these dtypes, which are used in turn.

    Args:
        args: Arguments, tensors in lists among them.
        dtypes: The dtypes.
    """
    seen = 0

    def to_next(tensor: Tensor) -> Tensor:
        nonlocal seen
        if not tensor.is_floating_point():
            return tensor
        seen += 1
        return tensor.detach().clone().to(dtypes[(seen - 1) % len(dtypes)])

    return map_call(to_next, args, {})[0]


def num_floating(args: tuple[Any, ...]) -> int:
    """Count the floating tensors among arguments."""
    found = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal found
        found += tensor.is_floating_point()
        return tensor

    map_call(count, args, {})
    return found


def _rand(*shape: int) -> Tensor:
    return torch.rand(*shape) * 0.75 + 0.125


def _square() -> Tensor:
    return _rand(7, 7)


def _pair() -> tuple[Tensor, Tensor]:
    return _square(), _square() * 0.5


def _classes() -> tuple[Tensor, Tensor]:
    return _square(), torch.arange(7)


def _signs(*shape: int) -> Tensor:
    return torch.ones(*shape)


def _rnn(num_gates: int, has_cell: bool) -> tuple[Any, ...]:
    hidden = _rand(1, 2, 5)
    state = [hidden, _rand(1, 2, 5)] if has_cell else hidden
    weights = [_rand(5 * num_gates, 3), _rand(5 * num_gates, 5), *(_rand(5 * num_gates),) * 2]
    return _rand(3, 2, 3), state, weights, True, 1, 0.0, False, False, False


def _cell(num_gates: int, has_cell: bool) -> tuple[Any, ...]:
    state = [_rand(2, 5), _rand(2, 5)] if has_cell else _rand(2, 5)
    weights = (_rand(5 * num_gates, 3), _rand(5 * num_gates, 5))
    return (_rand(2, 3), state, *weights, _rand(5 * num_gates), _rand(5 * num_gates))


def _ctc() -> tuple[Any, ...]:
    return (
        torch.rand(5, 2, 4).log_softmax(2),
        torch.tensor([[1, 2], [1, 3]]),
        torch.tensor([5, 5]),
        torch.tensor([2, 2]),
    )


def _image() -> Tensor:
    return _rand(1, 2, 6, 6)


def _batches() -> Tensor:
    return _rand(2, 4, 4)


def _vector() -> Tensor:
    return _rand(4)


def _matrix() -> Tensor:
    return _rand(4, 4)


_SAMPLES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "conv1d": lambda: (_rand(1, 2, 6), _rand(3, 2, 3)),
    "conv2d": lambda: (_image(), _rand(3, 2, 3, 3)),
    "conv3d": lambda: (_rand(1, 2, 5, 5, 5), _rand(3, 2, 3, 3, 3)),
    "conv_transpose1d": lambda: (_rand(1, 2, 6), _rand(2, 3, 3)),
    "conv_transpose2d": lambda: (_image(), _rand(2, 3, 3, 3)),
    "conv_transpose3d": lambda: (_rand(1, 2, 5, 5, 5), _rand(2, 3, 3, 3, 3)),
    "conv_tbc": lambda: (_rand(5, 2, 3), _rand(3, 3, 4), _rand(4)),
    "prelu": lambda: (_matrix() - 0.5, _rand(1)),
    "addmm": lambda: (_matrix(), _matrix(), _matrix()),
    "addmv": lambda: (_vector(), _matrix(), _vector()),
    "addr": lambda: (_matrix(), _vector(), _vector()),
    "addbmm": lambda: (_matrix(), _batches(), _batches()),
    "baddbmm": lambda: (_batches(), _batches(), _batches()),
    "bmm": lambda: (_batches(), _batches()),
    "mm": _pair,
    "matmul": _pair,
    "rmatmul": _pair,
    "inner": _pair,
    "tensordot": _pair,
    "multi_dot": lambda: ([_square(), _square(), _square()],),
    "einsum": lambda: ("ij,jk->ik", _square(), _square()),
    "mv": lambda: (_matrix(), _vector()),
    "linear": lambda: (_matrix(), _matrix(), _vector()),
    "scaled_dot_product_attention": lambda: (_batches(), _batches(), _batches()),
    "lstm": lambda: _rnn(4, has_cell=True),
    "gru": lambda: _rnn(3, has_cell=False),
    "rnn_tanh": lambda: _rnn(1, has_cell=False),
    "rnn_relu": lambda: _rnn(1, has_cell=False),
    "lstm_cell": lambda: _cell(4, has_cell=True),
    "gru_cell": lambda: _cell(3, has_cell=False),
    "rnn_tanh_cell": lambda: _cell(1, has_cell=False),
    "rnn_relu_cell": lambda: _cell(1, has_cell=False),
    "pow": lambda: (_square(), 2.5),
    "rpow": lambda: (_square(), 2.0),
    "ipow": lambda: (_square(), 2.5),
    "cumprod": lambda: (_square(), 0),
    "cumsum": lambda: (_square(), 0),
    "dist": _pair,
    "renorm": lambda: (_square(), 2, 0, 1.0),
    "addcdiv": lambda: (_square(), _square(), _square()),
    "addcmul": lambda: (_square(), _square(), _square()),
    "cross": lambda: (_rand(4, 3), _rand(4, 3)),
    "bilinear": lambda: (_rand(2, 3), _rand(2, 4), _rand(5, 3, 4)),
    "dot": lambda: (_vector(), _vector()),
    "vdot": lambda: (_vector(), _vector()),
    "vecdot": _pair,
    "cat": lambda: ([_square(), _square()],),
    "stack": lambda: ([_square(), _square()],),
    "concat": lambda: ([_square(), _square()],),
    "concatenate": lambda: ([_square(), _square()],),
    "interpolate": lambda: (_image(), 13),
    "grid_sample": lambda: (_image(), _rand(1, 3, 3, 2), "bilinear", "zeros", False),
    "grid_sampler": lambda: (_image(), _rand(1, 3, 3, 2), 0, 0, False),
    "grid_sampler_2d": lambda: (_image(), _rand(1, 3, 3, 2), 0, 0, False),
    "grid_sampler_3d": lambda: (_rand(1, 2, 4, 4, 4), _rand(1, 3, 3, 3, 3), 0, 0, False),
    "softmin": lambda: (_square(), 1),
    "softmax": lambda: (_square(), 1),
    "log_softmax": lambda: (_square(), 1),
    "layer_norm": lambda: (_matrix(), (4,), _vector(), _vector()),
    "rms_norm": lambda: (_matrix(), (4,), _vector()),
    "group_norm": lambda: (_rand(2, 4, 3), 2, _vector(), _vector()),
    "local_response_norm": lambda: (_image(), 2),
    "cosine_similarity": _pair,
    "poisson_nll_loss": _pair,
    "cosine_embedding_loss": lambda: (_matrix(), _matrix(), _signs(4)),
    "cross_entropy": _classes,
    "nll_loss": _classes,
    "multi_margin_loss": _classes,
    "hinge_embedding_loss": lambda: (_square(), _signs(7, 7)),
    "kl_div": _pair,
    "l1_loss": _pair,
    "mse_loss": _pair,
    "huber_loss": _pair,
    "smooth_l1_loss": _pair,
    "soft_margin_loss": lambda: (_square(), _signs(7, 7)),
    "margin_ranking_loss": lambda: (_vector(), _vector(), _signs(4)),
    "multilabel_margin_loss": lambda: (_matrix(), torch.tensor([[0, 1, -1, 2]] * 4)),
    "multilabel_soft_margin_loss": _pair,
    "binary_cross_entropy": _pair,
    "binary_cross_entropy_with_logits": _pair,
    "triplet_margin_loss": lambda: (_square(), _square(), _square()),
    "ctc_loss": _ctc,
    "logsumexp": lambda: (_square(), 1),
    "sum_to_size": lambda: (_square(), (1, 7)),
    "mvlgamma": lambda: (_square() + 3, 2),
    "ldexp": lambda: (_square(), torch.arange(7)),
    "pairwise_distance": _pair,
    "chain_matmul": lambda: (_square(), _square()),
    "matrix_power": lambda: (_square(), 2),
}
