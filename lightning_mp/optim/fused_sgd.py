"""SGD on the fused kernels."""

from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from lightning_mp.kernels.sgd_group import sgd_group_step_
from lightning_mp.optim.fused_optimizer import FusedOptimizer

__all__ = ["FusedSGD"]


class FusedSGD(FusedOptimizer, SGD):
    """``torch.optim.SGD`` in one pass over memory, on CPU and GPU.

    State dicts are exchangeable with ``torch.optim.SGD`` in both directions. The learning rate if
    it is a tensor, and what a ``GradScaler`` found, stay on the device.

    Args:
        params: Parameters (float32, bfloat16 or float16) or parameter groups.
        lr: Learning rate, at least 0; a tensor to change it between replays of a CUDA graph.
        momentum: Decay of the momentum buffers, at least 0.
        dampening: Share of the gradient that the momentum does not take. If it is not 0, the first
            step waits for the device.
        weight_decay: L2 penalty, at least 0.
        nesterov: Whether the momentum is Nesterov's; needs momentum and no dampening.
        maximize: Whether to go uphill.
        materialize_master_grads: Whether ``amp.scale_loss`` at O2 leaves unscaled FP32 gradients
            that can be clipped. ``False`` leaves gradients half and scaled, the step unscales them
            on its way, and nothing may read or clip them in between. Without effect elsewhere.

    Raises:
        TypeError: A parameter has another dtype.
        ValueError: A number is out of its range.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = FusedSGD([weight], lr=0.5, momentum=0.9)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, 0.5, 0.5]
    """

    fused_group_step = staticmethod(sgd_group_step_)
    # A copied optimizer has nothing else that is not in its groups or its state.
    materialize_master_grads = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        materialize_master_grads: bool = True,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            maximize=maximize,
        )
        self.materialize_master_grads = materialize_master_grads
