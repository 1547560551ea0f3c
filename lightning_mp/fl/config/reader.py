"""Turn the content of a YAML file into an FlConfig; every refusal names file and line."""

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from lightning_mp.fl.config.checks import check_choice, closest
from lightning_mp.fl.config.cpu_config import CpuConfig
from lightning_mp.fl.config.device_config import DeviceConfig
from lightning_mp.fl.config.fallback_config import FallbackConfig
from lightning_mp.fl.config.fl_config import FlConfig
from lightning_mp.fl.config.logging_config import LoggingConfig
from lightning_mp.fl.config.setting_error import SettingError
from lightning_mp.fl.config.sim_config import SimConfig
from lightning_mp.fl.config.yaml_tree import YamlTree

__all__ = ["DEVICE_TYPES", "read_config"]

Record = TypeVar("Record")

_CLASSES: tuple[type[DeviceConfig], ...] = (DeviceConfig, CpuConfig, SimConfig)
DEVICE_TYPES = tuple(name for cls in _CLASSES for name in cls.TYPES)
_SECTIONS = ("devices", "fallback", "logging")


def read_config(text: str, source: Path) -> FlConfig:
    """Read a configuration strictly.

    Args:
        text: YAML text.
        source: File that it comes from. A relative ``logging.path`` is relative to its folder.

    Returns:
        The configuration; what the text leaves out has its default.

    Raises:
        ValueError: An unknown key, a wrong type, a value out of range, a repetition.

    Example:
        >>> read_config("devices: [{type: cpu, count: 2}]", Path("config.yaml")).devices
        (CpuConfig(type='cpu', count=2, memory_fraction=1.0, cores=()),)
    """
    tree = YamlTree(text, str(source))
    sections = _mapping(tree, tree.content, "", _SECTIONS)
    devices = tuple(
        _device(tree, entry, f"devices[{place}]", source)
        for place, entry in enumerate(_list(tree, sections.get("devices"), "devices"))
    )
    fallback = _section(tree, sections, "fallback", FallbackConfig)
    logging = _section(tree, sections, "logging", LoggingConfig, folder=source.parent)
    try:
        return FlConfig(devices=devices, fallback=fallback, logging=logging, source=source)
    except SettingError as error:
        raise tree.refusal(error) from error


def _device(tree: YamlTree, entry: Any, path: str, source: Path) -> DeviceConfig:
    if not isinstance(entry, dict) or "type" not in entry:
        raise tree.error(
            f"{path} = {entry!r} has no type; allowed: a mapping with type and its settings; write "
            "- type: cpu",
            path,
        )
    given_type = entry["type"]
    try:
        check_choice("type", given_type, DEVICE_TYPES)
    except SettingError as error:
        raise tree.refusal(error, path) from error
    cls = next(cls for cls in _CLASSES if given_type in cls.TYPES)
    settings = _mapping(tree, entry, path, _names(cls))
    where = f"{source}, line {tree.line(path)}"
    return _record(tree, path, cls, {**settings, "where": where})


def _section(
    tree: YamlTree,
    sections: dict[str, Any],
    path: str,
    cls: type[Record],
    folder: Path | None = None,
) -> Record:
    settings = _mapping(tree, sections.get(path), path, _names(cls))
    log_path = settings.get("path")
    if folder is not None and isinstance(log_path, str) and log_path:
        settings["path"] = str(folder.absolute() / Path(log_path).expanduser())
    return _record(tree, path, cls, settings)


def _record(tree: YamlTree, path: str, cls: type[Record], settings: dict[str, Any]) -> Record:
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    try:
        return cls(**values)
    except SettingError as error:
        raise tree.refusal(error, path) from error


def _mapping(tree: YamlTree, value: Any, path: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    # An empty section counts as one that is not there.
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise tree.error(
            f"{path or 'the file'} = {value!r} is no mapping; allowed: the keys "
            f"{', '.join(allowed)}; write them as key: value",
            path,
        )
    for key in value:
        if key not in allowed:
            inner = f"{path}.{key}" if path else key
            raise tree.error(
                f"{inner} is an unknown key; allowed: {', '.join(allowed)}"
                f"{closest(key, allowed)}; correct or remove it",
                inner,
            )
    return dict(value)


def _list(tree: YamlTree, value: Any, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise tree.error(
            f"{path} = {value!r} is no list; allowed: a list of devices; begin each with a dash, "
            "as in - type: cpu",
            path,
        )
    return value


def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if field.name != "where")
