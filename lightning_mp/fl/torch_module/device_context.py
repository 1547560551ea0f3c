"""``with torch.fl.device(1):``."""

from typing import Any

import torch

from lightning_mp.fl.torch_module.device_index import DeviceLike, device_index

__all__ = ["device"]


class device:
    """Make a device the current one inside a ``with`` block.

    Args:
        device: A device of fl, its name or its id; an id below 0 changes nothing.
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = torch._C._accelerator_exchangeDevice(self.idx)

    def __exit__(self, *exception: Any) -> None:
        torch._C._accelerator_maybeExchangeDevice(self.prev_idx)
