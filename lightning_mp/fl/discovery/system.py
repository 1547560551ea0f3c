"""The machine as discovery sees it, so that tests can give it another one."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from platform import node
from typing import Any

import torch

from lightning_mp.fl.home import fl_folder

__all__ = ["System"]


def _may_use(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _usable_cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class System:
    """Give access to files, torch and the process.

    Args:
        root: Folder that stands for ``/``.
        torch: The package torch, or something with the same names.
        environ: Environment variables.
        may_use: Says whether this user may read and write a device node.
        cores: Numbers of the cores that this process may use.
        platform: As ``sys.platform``.
        host_name: Name of the host.
        folder: Where fl keeps its files; None without a home.
    """

    root: Path = Path("/")
    torch: Any = torch
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    may_use: Callable[[Path], bool] = _may_use
    cores: tuple[int, ...] = field(default_factory=_usable_cores)
    platform: str = sys.platform
    host_name: str = field(default_factory=node)
    folder: Path | None = field(default_factory=fl_folder)

    @property
    def host_id(self) -> str:
        """Name of the host and a part of its machine id, which tells hosts of one name apart."""
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.host_name) or "host"
        machine = self.read("etc/machine-id").strip()
        if not machine:
            return name
        # The id itself is meant to stay on the machine.
        return f"{name}-{hashlib.sha256(machine.encode()).hexdigest()[:8]}"

    def read(self, name: str) -> str:
        """Read a small text file of the kernel.

        Args:
            name: Path below the root.

        Returns:
            Its text; empty if it cannot be read.
        """
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def find(self, *patterns: str) -> list[Path]:
        """List what matches, as ``Path.glob`` below the root.

        Args:
            patterns: Patterns in the order of their results.

        Returns:
            Sorted paths for each pattern; none where a folder cannot be read.
        """
        return [path for pattern in patterns for path in sorted(self._glob(pattern))]

    def _glob(self, pattern: str) -> Iterator[Path]:
        try:
            yield from self.root.glob(pattern)
        except OSError:
            return
