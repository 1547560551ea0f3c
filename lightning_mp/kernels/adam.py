"""Pass 2 of a fused step with Adam or AdamW."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels
from lightning_mp.kernels.versions import bump_versions

__all__ = ["adam_step_"]

load_kernels()


@torch.no_grad()
def adam_step_(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    copies: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float | Tensor,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    is_decoupled: bool = False,
    maximize: bool = False,
    factor: Tensor | None = None,
    found_inf: Tensor | None = None,
    clip_value: float | None = None,
    zero_gradients: bool = False,
    adopt: bool = False,
    seed: int = 0,
) -> None:
    """Update weights, moments and half copies from gradients, in one pass over memory.

    The order of operations is that of ``torch.optim.Adam`` and ``AdamW``. A row is what has the
    same place in all lists. Its tensors may have any strides; they are walked in storage order if
    they share a dense layout, and go through a copy if not.

    Args:
        gradients: float32, bfloat16 or float16, in the shapes of ``weights``.
        weights: float32 weights (masters or parameters), updated in place; or int16 remainders of
            split masters, whose upper halves are in ``copies``.
        copies: bfloat16 or float16 weights that take the rounded result; a tensor without elements
            where there is none.
        exp_avgs: First moments, all of them float32 or all bfloat16. What is computed is FP32 in
            either case; a bfloat16 moment is rounded stochastically when it is stored.
        exp_avg_sqs: Second moments, of the same dtype.
        steps: float32 tensors of one element, the number of updates so far; each grows by 1.
        lr: Learning rate, at least 0; a float32 tensor of one element is read on the device.
        betas: Decays of the moments, in [0, 1).
        eps: Term added to the denominator, at least 0.
        weight_decay: L2 penalty (Adam) or decoupled decay (AdamW), at least 0.
        is_decoupled: Whether the decay is AdamW's.
        maximize: Whether to go uphill.
        factor: What gradients are multiplied by first, float32 with one element; ``None`` for 1.
        found_inf: float32 with one element; unless it is 0, everything stays as it is, bit for bit.
        clip_value: Largest absolute value of a gradient element after ``factor``; a NaN stays one.
        zero_gradients: Whether gradients are set to 0.
        adopt: Whether a half copy that is not the rounding of its weight, which somebody else must
            have written, replaces that weight first, element by element. Split masters cannot tell.
        seed: Seed of the roundings of bfloat16 moments. With it, the step and the place of an
            element in its tensor's memory say how the element is rounded, whatever the device.

    Raises:
        RuntimeError: If arguments do not fit together; nothing was written.

    Example:
        >>> gradient, weight = torch.ones(3).bfloat16(), torch.ones(3)
        >>> copy, step = weight.bfloat16(), torch.zeros(())
        >>> moments = torch.zeros(2, 3).unbind()
        >>> adam_step_([gradient], [weight], [copy], *[[m] for m in moments], [step], lr=0.5)
        >>> copy.tolist(), step.item()
        ([0.5, 0.5, 0.5], 1.0)
    """
    torch.ops.lightning_mp.adam_step_(
        gradients,
        weights,
        copies,
        exp_avgs,
        exp_avg_sqs,
        steps,
        factor=factor,
        found_inf=found_inf,
        lr_tensor=lr if isinstance(lr, Tensor) else None,
        lr=0.0 if isinstance(lr, Tensor) else lr,
        beta1=betas[0],
        beta2=betas[1],
        eps=eps,
        weight_decay=weight_decay,
        decoupled=is_decoupled,
        maximize=maximize,
        clip_value=clip_value,
        zero_gradients=zero_gradients,
        adopt=adopt,
        seed=seed,
    )
    bump_versions(weights, copies, gradients if zero_gradients else ())
