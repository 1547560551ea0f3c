"""What a check of the kernels on a device is."""

from collections.abc import Callable

import torch

__all__ = ["Check", "NotHereError", "require_gpu"]

Check = Callable[[torch.device, bool], str]
"""Takes the device and whether to be quick; returns what was found, raises if it is wrong."""


class NotHereError(Exception):
    """Say that a check needs what this device does not have."""


def require_gpu(device: torch.device) -> None:
    """Go on only on a GPU.

    Args:
        device: The device.

    Raises:
        NotHereError: If it is another.
    """
    if device.type != "cuda":
        raise NotHereError("needs a GPU")
