"""Adam on the fused kernels."""

from typing import Literal

import torch
from torch import Tensor
from torch.optim import Adam
from torch.optim.optimizer import ParamsT

from lightning_mp.kernels.adam_group import fused_adam_group_step_
from lightning_mp.optim.fused_adam_base import FusedAdamBase

__all__ = ["FusedAdam"]


class FusedAdam(FusedAdamBase, Adam):
    """``torch.optim.Adam`` in one pass over memory, on CPU and GPU.

    State dicts are exchangeable with ``torch.optim.Adam`` in both directions. The step counter, the
    learning rate if it is a tensor, and what a ``GradScaler`` found stay on the device.

    Args:
        params: Parameters (float32, bfloat16 or float16) or parameter groups.
        lr: Learning rate, at least 0; a tensor to change it between replays of a CUDA graph.
        betas: Decays of the moments, in [0, 1).
        eps: Term added to the denominator, at least 0.
        weight_decay: L2 penalty, at least 0.
        decoupled_weight_decay: Whether the decay is that of AdamW.
        maximize: Whether to go uphill.
        capturable: Kept for the groups; every step can be captured in a CUDA graph.
        state_dtype: Dtype of the moments: float32 or bfloat16, or ``"fp32"`` or ``"bf16"``.
            Bfloat16 moments are computed in FP32 and rounded stochastically when they are stored,
            by a hash of step and place, and of the group's ``rounding_seed`` (default: 0).

    Raises:
        TypeError: A parameter has another dtype.
        ValueError: A number is out of its range, or ``state_dtype`` is another.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = FusedAdam([weight], lr=0.5)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> round(weight.mean().item(), 4)
        0.5

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015.
    """

    fused_group_step = staticmethod(fused_adam_group_step_)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        capturable: bool = False,
        state_dtype: torch.dtype | Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            capturable=capturable,
        )
        self._set_state_dtype(state_dtype)
