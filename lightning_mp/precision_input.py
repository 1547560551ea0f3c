"""Turn the precision strings of the Trainer and of Fabric into their plugins."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch

from lightning_mp.amp.opt_levels import parse_precision
from lightning_mp.checkpoint_io import AtomicCheckpointIO
from lightning_mp.fabric_precision import AmpFabricPrecision
from lightning_mp.lightning_api import (
    CheckpointIO,
    DeepSpeedStrategy,
    FabricPrecision,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceXLAStrategy,
    StrategyRegistry,
    XLAStrategy,
    fabric_strategies,
)
from lightning_mp.precision import AmpPrecision

__all__ = ["PrecisionLevel", "resolve_fabric_precision", "resolve_precision"]

PrecisionLevel: TypeAlias = Literal["O0", "O1", "O1-bf16", "O2", "O2-bf16", "O3", "O3-bf16"]

# What a slip of the finger makes of a level: "02", "o2", "O7", "O2_bf16". No precision of Lightning
# begins so.
_LEVEL_LOOKALIKE = re.compile(r"\s*[oO0]-?[0-9].*")


class _Host(NamedTuple):
    """Who runs the plugin: the Trainer or Fabric."""

    name: str
    plugin: type[AmpPrecision] | type[AmpFabricPrecision]
    other_plugin: type[AmpPrecision] | type[AmpFabricPrecision]
    # They convert the model themselves and take only precision plugins of their own.
    unsupported: tuple[type, ...]
    registry: Any


_TRAINER = _Host(
    "Trainer",
    AmpPrecision,
    AmpFabricPrecision,
    (
        DeepSpeedStrategy,
        FSDPStrategy,
        ModelParallelStrategy,
        SingleDeviceXLAStrategy,
        XLAStrategy,
    ),
    StrategyRegistry,
)
_FABRIC = _Host(
    "Fabric",
    AmpFabricPrecision,
    AmpPrecision,
    (
        fabric_strategies.DataParallelStrategy,
        fabric_strategies.DeepSpeedStrategy,
        fabric_strategies.FSDPStrategy,
        fabric_strategies.ModelParallelStrategy,
        fabric_strategies.SingleDeviceXLAStrategy,
        fabric_strategies.XLAFSDPStrategy,
        fabric_strategies.XLAStrategy,
    ),
    fabric_strategies.STRATEGY_REGISTRY,
)


def resolve_precision(precision: Any, plugins: Any, strategy: Any = None) -> tuple[Any, Any]:
    """Turn one of our strings into a plugin; leave Lightning's own precisions to it.

    A plugin of ours may stand in the place of a string, too.

    Args:
        precision: ``precision`` as given to the Trainer.
        plugins: ``plugins`` as given: ``None``, one plugin or an iterable. It is not changed.
        strategy: ``strategy`` as given: ``None``, a name or a strategy.

    Returns:
        ``(precision, plugins)`` for Lightning: ``None`` and a new list for a precision of ours,
        else the arguments with the same content. An opt level brings an ``AtomicCheckpointIO``
        along unless ``plugins`` holds a checkpoint IO.

    Raises:
        ValueError: If ``precision`` looks like an opt level but is none of ours, if ``plugins``
            holds a precision plugin as well, or if the strategy takes only plugins of its own.

    Example:
        >>> resolve_precision("16-mixed", None)
        ('16-mixed', None)
    """
    return _resolve(_TRAINER, precision, plugins, strategy)


def resolve_fabric_precision(precision: Any, plugins: Any, strategy: Any = None) -> tuple[Any, Any]:
    """Do for Fabric what :func:`resolve_precision` does for the Trainer.

    Args:
        precision: ``precision`` as given to Fabric.
        plugins: ``plugins`` as given: ``None``, one plugin or an iterable. It is not changed.
        strategy: ``strategy`` as given: ``None``, a name or a strategy.

    Returns:
        ``(precision, plugins)`` for Fabric.

    Raises:
        ValueError: As for :func:`resolve_precision`.
        TypeError: ``plugins`` holds the Trainer's plugin.

    Example:
        >>> resolve_fabric_precision("bf16-true", None)
        ('bf16-true', None)
    """
    return _resolve(_FABRIC, precision, plugins, strategy)


def _resolve(host: _Host, precision: Any, plugins: Any, strategy: Any) -> tuple[Any, Any]:
    if isinstance(plugins, Iterable):
        plugins = list(plugins)
    plugin = _plugin_of(host, precision)
    if plugin is not None:
        _check_only_precision(host, precision, plugin.opt_level, _as_list(plugins))
        precision, plugins = None, [*_as_list(plugins), plugin]
    given = _as_list(plugins)
    if any(isinstance(plugin, host.other_plugin) for plugin in given):
        raise TypeError(
            f"plugins = {host.other_plugin.__name__}(...) with {host.name}; allowed: "
            f"{host.plugin.__name__}; hand that over, with the same arguments"
        )
    if any(isinstance(plugin, host.plugin) for plugin in given):
        _check_strategy(host, strategy)
        if not any(isinstance(plugin, CheckpointIO) for plugin in given):
            plugins = [*given, AtomicCheckpointIO()]
    return precision, plugins


def _as_list(plugins: Any) -> list[Any]:
    if plugins is None:
        return []
    return plugins if isinstance(plugins, list) else [plugins]


def _plugin_of(host: _Host, precision: Any) -> AmpPrecision | AmpFabricPrecision | None:
    if isinstance(precision, AmpPrecision | AmpFabricPrecision):
        return precision
    if not isinstance(precision, str) or not _LEVEL_LOOKALIKE.fullmatch(precision):
        return None
    opt_level, half_dtype = parse_precision(precision)
    return host.plugin(
        opt_level=cast("Literal['O0', 'O1', 'O2', 'O3']", opt_level),
        half_dtype="bf16" if half_dtype is torch.bfloat16 else "fp16",
    )


def _check_only_precision(
    host: _Host, precision: Any, opt_level: str, plugins: Sequence[Any]
) -> None:
    # The base of the Trainer's precision plugins, too.
    clash = [repr(plugin) for plugin in plugins if isinstance(plugin, FabricPrecision)]
    if clash:
        raise ValueError(
            f"precision = {precision!r} and plugins = [{', '.join(clash)}]; allowed: one precision "
            f"plugin per {host.name}; drop one of the two, or say it all in the plugin: "
            f"plugins=[{host.plugin.__name__}(opt_level={opt_level!r}, ...)]"
        )


def _check_strategy(host: _Host, strategy: Any) -> None:
    cls = type(strategy)
    if isinstance(strategy, str) and strategy.lower() in host.registry:
        cls = host.registry[strategy.lower()]["strategy"]
    if issubclass(cls, host.unsupported):
        shown = repr(strategy) if isinstance(strategy, str) else cls.__name__
        raise ValueError(
            f"strategy = {shown} with an opt level; allowed: one device, ddp, ddp_spawn, ddp_fork; "
            "take one of these, or a precision that comes with the strategy, such as 'bf16-true'"
        )
