"""Turn the precision strings of the Trainer into the plugin; shared by both Trainers."""

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, cast

import torch

from lightning_mp.amp.opt_levels import parse_precision
from lightning_mp.checkpoint_io import AtomicCheckpointIO
from lightning_mp.lightning_api import (
    CheckpointIO,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    Precision,
    SingleDeviceXLAStrategy,
    StrategyRegistry,
    XLAStrategy,
)
from lightning_mp.precision import AmpPrecision

__all__ = ["PrecisionLevel", "resolve_precision"]

PrecisionLevel: TypeAlias = Literal["O0", "O2", "O2-bf16", "O3", "O3-bf16"]

# What a slip of the finger makes of a level: "02", "o2", "O7", "O2-fp8".
_LEVEL_LOOKALIKE = re.compile(r"[oO0][0-9](-.*)?")
# They convert the model themselves and take only precision plugins of their own.
_UNSUPPORTED_STRATEGIES = (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceXLAStrategy,
    XLAStrategy,
)


def resolve_precision(precision: Any, plugins: Any, strategy: Any = None) -> tuple[Any, Any]:
    """Turn one of our strings into a plugin; leave every other precision to Lightning.

    Args:
        precision: ``precision`` as given to the Trainer.
        plugins: ``plugins`` as given: ``None``, one plugin or an iterable. It is not changed.
        strategy: ``strategy`` as given: ``None``, a name or a strategy.

    Returns:
        ``(precision, plugins)`` for Lightning: ``None`` and a new list for one of our strings, else
        the arguments with the same content. An opt level brings an ``AtomicCheckpointIO`` along
        unless ``plugins`` holds a checkpoint IO.

    Raises:
        ValueError: If ``precision`` looks like an opt level but is none of ours, if ``plugins``
            holds a precision plugin as well, or if the strategy takes only plugins of its own.

    Example:
        >>> resolve_precision("16-mixed", None)
        ('16-mixed', None)
    """
    if isinstance(plugins, Iterable):
        plugins = list(plugins)
    if isinstance(precision, str) and _LEVEL_LOOKALIKE.fullmatch(precision):
        precision, plugins = None, _with_plugin_of(precision, _as_list(plugins))
    given = _as_list(plugins)
    if any(isinstance(plugin, AmpPrecision) for plugin in given):
        _check_strategy(strategy)
        if not any(isinstance(plugin, CheckpointIO) for plugin in given):
            plugins = [*given, AtomicCheckpointIO()]
    return precision, plugins


def _as_list(plugins: Any) -> list[Any]:
    if plugins is None:
        return []
    return plugins if isinstance(plugins, list) else [plugins]


def _with_plugin_of(precision: str, plugins: list[Any]) -> list[Any]:
    opt_level, half_dtype = parse_precision(precision)
    clash = [repr(plugin) for plugin in plugins if isinstance(plugin, Precision)]
    if clash:
        raise ValueError(
            f"precision = {precision!r} and plugins = [{', '.join(clash)}]; allowed: one precision "
            "plugin per Trainer; drop one of the two, or say it all in the plugin: "
            f"plugins=[AmpPrecision(opt_level={opt_level!r}, ...)]"
        )
    plugin = AmpPrecision(
        opt_level=cast("Literal['O0', 'O2', 'O3']", opt_level),
        half_dtype="bf16" if half_dtype is torch.bfloat16 else "fp16",
    )
    return [*plugins, plugin]


def _check_strategy(strategy: Any) -> None:
    cls = type(strategy)
    if isinstance(strategy, str) and strategy.lower() in StrategyRegistry:
        cls = StrategyRegistry[strategy.lower()]["strategy"]
    if issubclass(cls, _UNSUPPORTED_STRATEGIES):
        shown = repr(strategy) if isinstance(strategy, str) else cls.__name__
        raise ValueError(
            f"strategy = {shown} with an opt level; allowed: one device, ddp, ddp_spawn, ddp_fork; "
            "take one of these, or a precision that comes with the strategy, such as 'bf16-true'"
        )
