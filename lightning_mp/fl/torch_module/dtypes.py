"""What devices compute natively."""

import torch

from lightning_mp.fl.activation import active_specs

__all__ = ["get_amp_supported_dtype", "is_bf16_supported"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that ``torch.autocast("fl")`` takes."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported() -> bool:
    """Tell whether every device computes in bfloat16."""
    return all(spec.dtypes is None or torch.bfloat16 in spec.dtypes for spec in active_specs())
