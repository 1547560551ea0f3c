"""The state file that keeps logical ids from one start to the next."""

import os
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_mp.fl.atomic_file import write_atomically
from lightning_mp.fl.discovery.file_lock import locked
from lightning_mp.fl.discovery.found_device import FoundDevice
from lightning_mp.fl.discovery.id_table import IdTable

__all__ = ["IdFile"]

_LOCK_SECONDS = 10.0


class IdFile:
    """Keep the table of one host in a file of its own, so that hosts can share a home.

    Args:
        folder: Folder of fl; the file is ``state/<host id>.json`` in it. None without a home.
        host_id: Name of the host.
        log: Takes one line for each step.
        lock_seconds: How long to wait for another process of this host.
    """

    def __init__(
        self,
        folder: Path | None,
        host_id: str,
        log: Callable[[str], None],
        lock_seconds: float = _LOCK_SECONDS,
    ) -> None:
        self.path = None if folder is None else folder / "state" / f"{host_id}.json"
        self._log = log
        self._lock_seconds = lock_seconds

    def read(self, devices: Sequence[FoundDevice] = ()) -> IdTable:
        """Read the table without changing any file.

        Args:
            devices: Devices to number behind those of the file.

        Returns:
            The table; numbers by order alone if the file is missing or damaged.
        """
        try:
            return self._stored().extended(devices)
        except (OSError, ValueError) as error:
            self._log(f"ids: {self.path} is not usable ({error}); by order")
            return IdTable().extended(devices)

    def register(self, devices: Sequence[FoundDevice]) -> IdTable:
        """Number the devices and keep the numbers.

        A file that cannot be written costs a warning, and new devices are numbered for this
        process alone. A damaged one is moved aside with a warning.

        Args:
            devices: Devices that were found.

        Returns:
            The table, with all of them.
        """
        known = self.read()
        if known.extended(devices) == known:
            return known
        try:
            return self._extend(devices)
        except OSError as error:
            warnings.warn(
                f"ids of fl devices cannot be kept in {self.path or 'a home folder'} ({error}); "
                "they are given by order and may be others at the next start; make the folder "
                "writable",
                stacklevel=2,
            )
            return known.extended(devices)

    def _extend(self, devices: Sequence[FoundDevice]) -> IdTable:
        if self.path is None:
            raise FileNotFoundError("this user has no home")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_suffix(".lock"), self._lock_seconds):
            try:
                stored = self._stored()
            except ValueError as error:
                self._move_aside(error)
                stored = IdTable()
            table = stored.extended(devices)
            if table != stored:
                write_atomically(self.path, table.to_json())
                self._log(f"ids: {self.path} written")
            return table

    def _stored(self) -> IdTable:
        if self.path is None or not self.path.exists():
            return IdTable()
        return IdTable.from_json(self.path.read_text(encoding="utf-8"))

    def _move_aside(self, error: ValueError) -> None:
        if self.path is None:
            return
        aside = self.path.with_name(f"{self.path.name}.damaged-{uuid.uuid4().hex[:8]}")
        os.replace(self.path, aside)
        warnings.warn(
            f"ids of fl devices in {self.path} = damaged ({error}); it is now {aside.name}, and "
            "the devices are numbered anew; check which device has which id",
            stacklevel=2,
        )
        self._log(f"ids: {self.path} was damaged, now {aside.name}")
