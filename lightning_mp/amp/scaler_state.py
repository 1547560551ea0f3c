"""The loss scaler's state in plain numbers, and the checks of what comes from outside."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

__all__ = ["LossScale", "ScalerState", "check_scaler_arguments", "parse_loss_scale"]

LossScale = float | Literal["dynamic"]

_MAX_LOSS_SCALE = 2.0**126  # it and its reciprocal are normal float32 numbers

_MAX_COUNT = 2**31 - 1


class ScalerState(NamedTuple):
    """Hold the state of a :class:`~lightning_mp.amp.loss_scaler.LossScaler` as plain numbers.

    Attributes:
        loss_scale: Scale, positive.
        growth_tracker: Number of good updates in a row.
        hysteresis_tracker: Number of overflows left until the scale shrinks.
        skipped_steps: Number of steps that overflowed.
        consecutive_skips: Number of the latest steps in a row that overflowed.
        is_dynamic: Whether the scale moves.
    """

    loss_scale: float
    growth_tracker: int = 0
    hysteresis_tracker: int = 1
    skipped_steps: int = 0
    consecutive_skips: int = 0
    is_dynamic: bool = True

    @classmethod
    def parse(cls, state: Mapping[str, Any], *, hysteresis: int) -> "ScalerState":
        """Read and check a saved state.

        Args:
            state: Mapping with ``loss_scale`` and this class's other names, each of them
                optional; or with ``scale`` and ``_growth_tracker``, as ``GradScaler`` saves them.
            hysteresis: Tracker value where the state has none.

        Returns:
            The state.

        Raises:
            ValueError: If a key is missing or a value is impossible.
        """
        names = {name: name for name in cls._fields}
        if "loss_scale" not in state and "scale" in state:
            names.update(loss_scale="scale", growth_tracker="_growth_tracker")
        if names["loss_scale"] not in state:
            raise ValueError(
                f"loss scaler state has the keys {sorted(map(str, state))}; 'loss_scale', or "
                "'scale' and '_growth_tracker' are needed; pass what a LossScaler, a GradScaler "
                "or Lightning's MixedPrecision saved"
            )
        defaults = {**cls._field_defaults, "hysteresis_tracker": hysteresis}
        values = {name: state.get(key, defaults.get(name)) for name, key in names.items()}
        remedy = "pass an undamaged state, or none, to start from init_scale"
        scale = values.pop("loss_scale")
        _require(names["loss_scale"], scale, _is_scale, "2**-126 to 2**126", remedy)
        is_dynamic = values.pop("is_dynamic")
        if not isinstance(is_dynamic, bool):
            raise ValueError(f"is_dynamic = {is_dynamic!r}; allowed are True and False; {remedy}")
        for name, value in values.items():
            _require(names[name], value, _is_count, "an int from 0 to 2**31 - 1", remedy)
        return cls(float(scale), is_dynamic=is_dynamic, **values)


def parse_loss_scale(loss_scale: float | str) -> LossScale:
    """Read a loss scale.

    Args:
        loss_scale: ``"dynamic"``, a number from 2**-126 to 2**126 (so that the scale and its
            reciprocal are normal float32 numbers), or such a number as a string.

    Returns:
        ``"dynamic"`` or the number.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> parse_loss_scale("128.0")
        128.0
    """
    if loss_scale == "dynamic":
        return "dynamic"
    try:
        value = math.nan if isinstance(loss_scale, bool) else float(loss_scale)
    except (TypeError, ValueError):
        value = math.nan
    if not 1 / _MAX_LOSS_SCALE <= value <= _MAX_LOSS_SCALE:
        raise ValueError(
            f"loss_scale = {loss_scale!r}; allowed are 'dynamic' and a finite positive number "
            "(2**-126 to 2**126); use 'dynamic' with float16 and 1.0 with bfloat16"
        )
    return value


def check_scaler_arguments(
    *,
    init_scale: float,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    min_loss_scale: float,
    max_loss_scale: float,
    hysteresis: int,
) -> None:
    """Check the arguments of a loss scaler.

    Args:
        init_scale: Between floor and cap.
        growth_factor: Above 1.
        backoff_factor: Between 0 and 1, exclusive.
        growth_interval: At least 1.
        min_loss_scale: 2**-126 to ``max_loss_scale``.
        max_loss_scale: Up to 2**126.
        hysteresis: At least 1.

    Raises:
        ValueError: If one of them is outside its range.
    """
    _require(
        "max_loss_scale", max_loss_scale, _is_scale, "2**-126 to 2**126", "2**24 is the default"
    )
    _require(
        "min_loss_scale",
        min_loss_scale,
        lambda value: _is_scale(value) and value <= max_loss_scale,
        f"2**-126 to max_loss_scale = {max_loss_scale}",
        "2**-10 is the default; the floor is above 0 because a scale of 0 has no reciprocal",
    )
    _require(
        "init_scale",
        init_scale,
        lambda value: min_loss_scale <= value <= max_loss_scale,
        f"min_loss_scale = {min_loss_scale} to max_loss_scale = {max_loss_scale}",
        "set a start between the two, or move them",
    )
    _check_movement(growth_factor, backoff_factor, growth_interval, hysteresis)


def _check_movement(
    growth_factor: float, backoff_factor: float, growth_interval: int, hysteresis: int
) -> None:
    _require(
        "growth_factor",
        growth_factor,
        lambda value: 1.0 < value <= _MAX_LOSS_SCALE,
        "a number above 1",
        "2.0 is the default; set a long growth_interval for a scale that hardly grows",
    )
    _require(
        "backoff_factor",
        backoff_factor,
        lambda value: 0.0 < value < 1.0,
        "a number between 0 and 1, exclusive",
        "0.5 is the default; set loss_scale to a number for a scale that never shrinks",
    )
    for name, value in (("growth_interval", growth_interval), ("hysteresis", hysteresis)):
        _require(
            name,
            value,
            lambda count: _is_count(count) and count >= 1,
            "an int from 1 to 2**31 - 1",
            "count optimizer steps",
        )


def _require(
    name: str, value: Any, is_allowed: Callable[[Any], bool], allowed: str, remedy: str
) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not is_allowed(value):
        raise ValueError(f"{name} = {value!r}; allowed is {allowed}; {remedy}")


def _is_scale(value: float) -> bool:
    return 1 / _MAX_LOSS_SCALE <= value <= _MAX_LOSS_SCALE


def _is_count(value: float) -> bool:
    return isinstance(value, int) and 0 <= value <= _MAX_COUNT
