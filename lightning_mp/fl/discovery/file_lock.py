"""A lock between the processes of one host."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["locked"]

_PAUSE_SECONDS = 0.02


@contextmanager
def locked(path: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold a lock while the block runs.

    The lock belongs to the open file, so a process that ends in any way gives it back.

    Args:
        path: File that stands for the lock; it is made and stays.
        timeout_seconds: How long to wait for another process, which may have been stopped.

    Raises:
        TimeoutError: The other process kept it for longer.
        OSError: The file cannot be made, or the file system has no locks.
    """
    deadline = time.monotonic() + timeout_seconds
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"lock {str(path)!r} = held by another process for over "
                        f"{timeout_seconds:g} s; expected: a moment; end that process"
                    ) from error
                time.sleep(_PAUSE_SECONDS)
        yield
