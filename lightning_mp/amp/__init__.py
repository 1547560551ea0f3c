"""Mixed precision with opt levels, free of any training framework."""

from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.host_flag import HostFlag
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.opt_levels import (
    OPT_LEVELS,
    PRECISION_LEVELS,
    OptLevelProperties,
    parse_precision,
    resolve_opt_level,
)
from lightning_mp.amp.overflow import LossScaleCollapseWarning, OverflowRecord, OverflowTracker
from lightning_mp.amp.scaler_state import parse_loss_scale
from lightning_mp.amp.tree import cast_floating, map_tensors

__all__ = [
    "OPT_LEVELS",
    "PRECISION_LEVELS",
    "AmpEngine",
    "HostFlag",
    "LossScaleCollapseWarning",
    "LossScaler",
    "OptLevelProperties",
    "OverflowRecord",
    "OverflowTracker",
    "cast_floating",
    "map_tensors",
    "parse_loss_scale",
    "parse_precision",
    "resolve_opt_level",
]
