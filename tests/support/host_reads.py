"""Count the copies of values from tensors to Python and from devices to the host."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class HostReads(TorchDispatchMode):
    """Count ``.item()``, ``bool(tensor)``, ``.cpu()`` and the like while the mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_read = func is torch.ops.aten._local_scalar_dense.default
        if func in _COPIES:
            # The source is the first argument of one and the second of the other.
            source = args[0] if func is _COPIES[1] else args[1]
            is_read = source.device.type != "cpu" and result.device.type == "cpu"
        self.number += is_read
        return result
