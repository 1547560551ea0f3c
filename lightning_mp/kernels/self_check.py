"""A quick comparison of the compiled kernels with the references, for ``lightning-mp info``."""

import torch
from torch import Tensor

from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.reference import REFERENCES

__all__ = ["check_kernels"]

_NUMEL = 64 * 1024 + 7
# Relative to the largest weight: two orders of the same few FP32 operations.
_TOLERANCE = 1e-6


def check_kernels() -> str:
    """Run one step of AdamW by the active implementation and by the reference.

    Returns:
        ``"passed"``, or what differs and by how much.
    """
    mine, other = _lists(), _lists()
    adam_step_(*mine, lr=1e-3, weight_decay=0.1, is_decoupled=True)
    REFERENCES["adam_step_"](
        *other,
        factor=None,
        found_inf=None,
        lr_tensor=None,
        lr=1e-3,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        weight_decay=0.1,
        decoupled=True,
        maximize=False,
        clip_value=None,
        zero_gradients=False,
        adopt=False,
        seed=0,
    )
    error = float((mine[1][0] - other[1][0]).abs().max())
    if not error <= _TOLERANCE:
        return f"FAILED, weights differ by {error:.1e}; rebuild lightning_mp"
    if not torch.equal(mine[2][0], mine[1][0].bfloat16()):
        return "FAILED, half copies are not the rounded weights; rebuild lightning_mp"
    return "passed"


def _lists() -> tuple[list[Tensor], ...]:
    ramp = torch.linspace(-1.0, 1.0, _NUMEL)
    tensors = (ramp.sin().bfloat16(), ramp, ramp.bfloat16(), ramp * 0.1, ramp.square() * 0.01)
    return *([tensor.clone()] for tensor in tensors), [torch.zeros(())]
