"""Streams: those of the device underneath, or ids on the host, where work is done when called."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lightning_mp.fl.torch_module.device_index import DeviceLike, device_index

__all__ = ["Stream", "current_stream", "default_stream", "set_stream", "stream"]


class Stream(torch.Stream):
    """A new stream of a device of fl.

    Args:
        device: A device, its name or its id; None for the current one.
        priority: Lower numbers come first, where the device underneath has priorities.
        kwargs: What else ``torch.Stream`` takes.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> "Stream":  # noqa: D102
        if kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, torch.device("fl", device_index(device)), priority=priority)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """Return the current stream of a device.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        The stream.
    """
    return torch._C._accelerator_getStream(device_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """Return the stream that is current until another is chosen.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        The stream.
    """
    name = torch.device("fl", device_index(device))
    return torch.Stream(
        stream_id=0, device_index=name.index, device_type=current_stream(name).device_type
    )


def set_stream(stream: torch.Stream | None) -> None:
    """Choose the current stream of a device.

    Args:
        stream: A stream; None changes nothing.
    """
    if stream is not None:
        torch._C._accelerator_setStream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Make a stream the current one inside a ``with`` block.

    Args:
        stream: A stream; None changes nothing.

    Yields:
        Nothing.
    """
    if stream is None:
        yield
        return
    with stream:
        yield
