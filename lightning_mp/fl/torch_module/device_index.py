"""The ways to name a device of fl."""

from typing import TypeAlias

import torch

__all__ = ["DeviceLike", "device_index"]

DeviceLike: TypeAlias = "torch.device | str | int | None"


def device_index(device: DeviceLike = None) -> int:
    """Return the id of a device.

    Args:
        device: A device, its name or its id; None, or a device without an id, for the current one.

    Returns:
        The id, which need not be one that is there.

    Raises:
        ValueError: If it is a device of another type.
    """
    if isinstance(device, int):
        return device
    asked = torch.device("fl" if device is None else device)
    if asked.type != "fl":
        raise ValueError(
            f"device = {asked}; devices of type fl are allowed; name one, as in 'fl:0'"
        )
    if asked.index is None:
        return torch._C._accelerator_getDeviceIndex()
    return asked.index
