"""A device flag whose value the host reads late, without stopping the step path."""

import torch
from torch import Tensor

__all__ = ["HostFlag"]


class HostFlag:
    """Read a one-element device tensor as a bool once it has arrived on the host.

    The value is snapshot in stream order when the object is made, so the tensor may be written
    again afterwards. On an accelerator the snapshot is a non-blocking copy into pinned memory,
    followed by an event. On any other device it is a copy on the device, which is ready at once.

    Args:
        flag: Tensor with one element of any dtype; nonzero and NaN read as ``True``.

    Raises:
        ValueError: If the tensor has not exactly one element, or is on the meta device.

    Example:
        >>> flag = HostFlag(torch.tensor(1.0))
        >>> flag.read()
        True
    """

    def __init__(self, flag: Tensor) -> None:
        if flag.numel() != 1 or flag.device.type == "meta":
            raise ValueError(
                f"flag has shape {tuple(flag.shape)} on {flag.device}; one element on a device "
                "that holds values is allowed; reduce it (flag.any()) or move it there first"
            )
        self._value: bool | None = None
        self._snapshot: Tensor | None
        self._snapshot, self._event = _start_copy(flag.detach())

    def is_ready(self) -> bool:
        """Return whether :meth:`read` would return without waiting. Never blocks."""
        return self._event is None or self._event.query()

    def read(self) -> bool:
        """Return the value, waiting for it if need be.

        Returns:
            Whether the flag was set when this object was made.
        """
        if self._snapshot is not None:
            if self._event is not None:
                self._event.synchronize()
            self._value = bool(self._snapshot)
            self._snapshot = self._event = None  # gives the pinned memory back
        return bool(self._value)


def _start_copy(flag: Tensor) -> tuple[Tensor, torch.Event | None]:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != flag.device.type:
        return flag.clone(), None
    snapshot = torch.empty(flag.shape, dtype=flag.dtype, device="cpu", pin_memory=True)
    snapshot.copy_(flag, non_blocking=True)
    event = torch.Event(flag.device)
    # The copy runs on the stream of the flag's device, which need not be the current device.
    event.record(torch.accelerator.current_stream(flag.device))
    return snapshot, event
