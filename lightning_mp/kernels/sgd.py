"""Pass 2 of a fused step with SGD."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels
from lightning_mp.kernels.versions import bump_versions

__all__ = ["sgd_step_"]

load_kernels()


@torch.no_grad()
def sgd_step_(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    copies: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor] = (),
    *,
    lr: float | Tensor,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    is_first: bool = False,
    factor: Tensor | None = None,
    found_inf: Tensor | None = None,
    clip_value: float | None = None,
    zero_gradients: bool = False,
    adopt: bool = False,
) -> None:
    """Update weights, momentum buffers and half copies from gradients, in one pass over memory.

    The order of operations is that of ``torch.optim.SGD``. A row is what has the same place in all
    lists. Its tensors may have any strides; they are walked in storage order if they share a dense
    layout, and go through a copy if not.

    Args:
        gradients: float32, bfloat16 or float16, in the shapes of ``weights``.
        weights: float32 weights (masters or parameters), updated in place; or int16 remainders of
            split masters, whose upper halves are in ``copies``.
        copies: bfloat16 or float16 weights that take the rounded result; a tensor without elements
            where there is none.
        momentum_buffers: float32, in the shapes of ``weights``; none without momentum.
        lr: Learning rate, at least 0; a float32 tensor of one element is read on the device.
        momentum: Decay of the momentum buffers, at least 0.
        dampening: Share of the gradient that the buffers do not take.
        weight_decay: L2 penalty, at least 0.
        nesterov: Whether the momentum is Nesterov's.
        maximize: Whether to go uphill.
        is_first: Whether the buffers hold nothing yet: they take the gradient, undamped.
        factor: What gradients are multiplied by first, float32 with one element; ``None`` for 1.
        found_inf: float32 with one element; unless it is 0, everything stays as it is, bit for bit.
        clip_value: Largest absolute value of a gradient element after ``factor``; a NaN stays one.
        zero_gradients: Whether gradients are set to 0.
        adopt: Whether a half copy that is not the rounding of its weight, which somebody else must
            have written, replaces that weight first, element by element. Split masters cannot tell.

    Raises:
        RuntimeError: If arguments do not fit together; nothing was written.

    Example:
        >>> gradient, weight = torch.ones(3).bfloat16(), torch.ones(3)
        >>> copy = weight.bfloat16()
        >>> sgd_step_([gradient], [weight], [copy], lr=0.5)
        >>> copy.tolist()
        [0.5, 0.5, 0.5]
    """
    torch.ops.lightning_mp.sgd_step_(
        gradients,
        weights,
        copies,
        momentum_buffers,
        factor=factor,
        found_inf=found_inf,
        lr_tensor=lr if isinstance(lr, Tensor) else None,
        lr=0.0 if isinstance(lr, Tensor) else lr,
        momentum=momentum,
        dampening=dampening,
        weight_decay=weight_decay,
        nesterov=nesterov,
        maximize=maximize,
        is_first=is_first,
        clip_value=clip_value,
        zero_gradients=zero_gradients,
        adopt=adopt,
    )
    bump_versions(weights, copies, gradients if zero_gradients else ())
