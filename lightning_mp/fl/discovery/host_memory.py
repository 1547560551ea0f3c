"""Memory that a process on this machine may use."""

from pathlib import PurePosixPath

from lightning_mp.fl.discovery.system import System

__all__ = ["usable_memory_bytes"]


def usable_memory_bytes(system: System) -> int:
    """Find the machine's memory, or the limit of the process's control group if that is lower.

    Args:
        system: What to look at.

    Returns:
        Bytes; 0 if the operating system does not say.
    """
    fields = dict(line.split(":", 1) for line in _lines(system, "proc/meminfo") if ":" in line)
    total = 1024 * _number(fields.get("MemTotal", "").removesuffix("kB").strip())
    limits = [limit for name in _limit_files(system) if (limit := _number(system.read(name))) > 0]
    return min([total, *limits]) if total else 0


def _limit_files(system: System) -> list[str]:
    """List the files of the group and of every group above it, of both versions."""
    names = []
    for line in _lines(system, "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        path = PurePosixPath(group.strip().lstrip("/"))
        groups = [path, *path.parents]
        if not controllers:
            names += [f"sys/fs/cgroup/{folder}/memory.max" for folder in groups]
        elif "memory" in controllers.split(","):
            names += [f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes" for folder in groups]
    return names


def _lines(system: System, name: str) -> list[str]:
    return system.read(name).splitlines()


def _number(text: str) -> int:
    # "max" in place of a number means that there is no limit.
    return int(text) if text.strip().isdecimal() else 0
