"""Loss scaling whose whole state lives on the device, so that a step never waits for the host.

The rule is that of torch's ``GradScaler`` and Apex's ``update_scale_hysteresis``, with a floor and
a cap. Unlike in both, a static scale also counts overflows, and the state tensors are replaced
rather than written: a reference to ``scale`` keeps its value, as autograd and late readers need.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_mp.amp.scaler_state import ScalerState, check_scaler_arguments, parse_loss_scale

__all__ = ["LossScaler"]


class LossScaler:
    """Scale losses and move the scale by the overflows recorded.

    Per :meth:`update`: if any recorded step overflowed, the growth tracker restarts, and the
    scale is multiplied by ``backoff_factor`` (not below ``min_loss_scale``) once ``hysteresis``
    updates in a row overflowed. Otherwise, after ``growth_interval`` good updates in a row it is
    multiplied by ``growth_factor`` (not above ``max_loss_scale``). A static scale never moves.

    No method on the step path (:meth:`to`, :meth:`scale_loss`, :meth:`record`, :meth:`update`,
    ``inv_scale``, ``next_scale``) waits for the device.

    Args:
        loss_scale: ``"dynamic"`` or a fixed positive scale.
        init_scale: First scale of the dynamic mode, between floor and cap.
        growth_factor: Factor the scale grows by, above 1.
        backoff_factor: Factor the scale shrinks by, between 0 and 1.
        growth_interval: Number of good updates in a row before the scale grows, at least 1.
        min_loss_scale: Floor of the scale, at least 2**-126.
        max_loss_scale: Cap of the scale, at most 2**126.
        hysteresis: Number of overflows in a row before the scale shrinks, at least 1.

    Attributes:
        scale: Current scale (0-dim, float32).
        growth_tracker: Number of good updates in a row (0-dim, int32); stays 0 if static.
        hysteresis_tracker: Number of overflows left until the scale shrinks (0-dim, int32).
        num_skipped_steps: Number of recorded steps that overflowed (0-dim, int32).
        num_consecutive_skips: Number of the latest recorded steps in a row that overflowed
            (0-dim, int32).

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> scaler = LossScaler(init_scale=1024.0)
        >>> scaler.record(torch.tensor(1.0))
        >>> ratio = scaler.update()
        >>> scaler.loss_scale
        512.0
    """

    def __init__(
        self,
        loss_scale: float | Literal["dynamic"] = "dynamic",
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_loss_scale: float = 2.0**-10,
        max_loss_scale: float = 2.0**24,
        hysteresis: int = 1,
    ) -> None:
        fixed = parse_loss_scale(loss_scale)
        check_scaler_arguments(
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            min_loss_scale=min_loss_scale,
            max_loss_scale=max_loss_scale,
            hysteresis=hysteresis,
        )
        self._static_scale = None if fixed == "dynamic" else fixed
        self._init_scale = init_scale
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._min_loss_scale = min_loss_scale
        self._max_loss_scale = max_loss_scale
        self._hysteresis = hysteresis
        self._pending: Tensor | None = None
        self._next: tuple[Tensor, Tensor, Tensor] | None = None
        self._assign(ScalerState(init_scale, hysteresis_tracker=hysteresis), torch.device("cpu"))

    @property
    def is_dynamic(self) -> bool:
        """Return whether the scale moves."""
        return self._static_scale is None

    @property
    def is_identity(self) -> bool:
        """Return whether the scale is 1 for good."""
        return self._static_scale == 1.0

    @property
    def has_pending(self) -> bool:
        """Return whether a step was recorded since the last update."""
        return self._pending is not None

    @property
    def pending_overflow(self) -> Tensor:
        """Return whether a step recorded since the last update overflowed (0-dim, bool)."""
        if self._pending is None:
            return torch.zeros((), dtype=torch.bool, device=self.scale.device)
        return self._pending

    @property
    def loss_scale(self) -> float:
        """Return the current scale. Waits for the device if the scale is dynamic."""
        return self._static_scale if self._static_scale is not None else self.scale.item()

    @property
    def inv_scale(self) -> Tensor:
        """Return the reciprocal of the scale (0-dim, float32)."""
        return self.scale.reciprocal()

    @property
    def next_scale(self) -> Tensor:
        """Return the scale that :meth:`update` would leave if it were called now."""
        return self._advanced()[0]

    def to(self, device: torch.device | str) -> "LossScaler":
        """Move the state to a device; cheap if it is there already.

        Args:
            device: Where the loss lives. Moving from an accelerator to the CPU waits for it.

        Returns:
            This scaler.
        """
        device = torch.device(device)
        if self.scale.device != device:
            self.scale = self.scale.to(device, non_blocking=True)
            self.growth_tracker = self.growth_tracker.to(device, non_blocking=True)
            self.hysteresis_tracker = self.hysteresis_tracker.to(device, non_blocking=True)
            self.num_skipped_steps = self.num_skipped_steps.to(device, non_blocking=True)
            self.num_consecutive_skips = self.num_consecutive_skips.to(device, non_blocking=True)
            if self._pending is not None:
                self._pending = self._pending.to(device, non_blocking=True)
            self._next = None
        return self

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss in float32, times the scale, and move this scaler to its device.

        Args:
            loss: Floating tensor of any shape.

        Returns:
            The scaled loss, float32.
        """
        self.to(loss.device)
        loss = loss.float()
        return loss if self.is_identity else loss * self.scale

    def record(self, found_inf: Tensor) -> None:
        """Record whether one optimizer's step overflowed.

        Several records before an :meth:`update` count as one overflow of that update, and each
        for itself in ``num_skipped_steps``.

        Args:
            found_inf: 0-dim tensor of any dtype, nonzero if the step overflowed.

        Raises:
            ValueError: If it is not 0-dim.
        """
        if found_inf.dim() != 0:
            raise ValueError(
                f"found_inf has shape {tuple(found_inf.shape)}; a 0-dim tensor is allowed; "
                "reduce it first, for example by found_inf.amax()"
            )
        if self.scale.device.type == "cpu":  # bringing the flag there instead would wait for it
            self.to(found_inf.device)
        overflow = (found_inf.detach() != 0).to(self.scale.device, non_blocking=True)
        self.num_skipped_steps = self.num_skipped_steps + overflow
        self.num_consecutive_skips = (self.num_consecutive_skips + 1) * overflow
        self._pending = overflow if self._pending is None else self._pending | overflow
        self._next = None

    def update(self) -> Tensor | None:
        """Apply what was recorded since the last update.

        Returns:
            New scale over old (0-dim, float32), or ``None`` if nothing was recorded or the scale
            is static. Outstanding scaled gradients are to be multiplied by it.
        """
        if self._pending is None:
            return None
        old = self.scale
        self.scale, self.growth_tracker, self.hysteresis_tracker = self._advanced()
        self._pending = self._next = None
        return self.scale / old if self.is_dynamic else None

    def state_dict(self) -> dict[str, float | int | bool]:
        """Return the state as plain numbers, as if :meth:`update` were called first.

        The scaler itself is not changed: a later :meth:`update` still returns its ratio. Waits
        for the device.

        Returns:
            ``loss_scale``, ``growth_tracker``, ``hysteresis_tracker``, ``skipped_steps``,
            ``consecutive_skips`` and ``is_dynamic``.
        """
        scale, growth_tracker, hysteresis_tracker = self._advanced()
        return ScalerState(
            loss_scale=scale.item() if self._static_scale is None else self._static_scale,
            growth_tracker=int(growth_tracker.item()),
            hysteresis_tracker=int(hysteresis_tracker.item()),
            skipped_steps=int(self.num_skipped_steps.item()),
            consecutive_skips=int(self.num_consecutive_skips.item()),
            is_dynamic=self.is_dynamic,
        )._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`, of torch's ``GradScaler`` or of Lightning's.

        The arguments of this scaler stay in force: a static scale is kept, a dynamic one is
        brought between floor and cap, and starts at ``init_scale`` if the saved scale was static.
        Records not yet applied are dropped.

        Args:
            state: Mapping with ``loss_scale``, or with ``scale`` and ``_growth_tracker``.

        Raises:
            ValueError: If a key is missing or a value is impossible; nothing is changed then.
        """
        loaded = ScalerState.parse(state, hysteresis=self._hysteresis)
        self._pending = self._next = None
        self._assign(loaded, self.scale.device)

    def _assign(self, state: ScalerState, device: torch.device) -> None:
        scale, growth_tracker = self._init_scale, 0
        if self._static_scale is not None:
            scale = self._static_scale
        elif state.is_dynamic:
            scale = min(max(state.loss_scale, self._min_loss_scale), self._max_loss_scale)
            growth_tracker = state.growth_tracker
        hysteresis_tracker = min(state.hysteresis_tracker, self._hysteresis)
        self.scale = torch.tensor(scale, dtype=torch.float32, device=device)
        self.growth_tracker = _counter(growth_tracker, device)
        self.hysteresis_tracker = _counter(hysteresis_tracker, device)
        self.num_skipped_steps = _counter(state.skipped_steps, device)
        self.num_consecutive_skips = _counter(state.consecutive_skips, device)

    def _advanced(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return scale, growth tracker and hysteresis tracker with the records applied."""
        overflow = self._pending
        if overflow is None or not self.is_dynamic:
            return self.scale, self.growth_tracker, self.hysteresis_tracker
        if self._next is None:
            left = (self.hysteresis_tracker - 1).clamp(min=0)
            good = (self.growth_tracker + 1) * ~overflow
            shrinks = overflow & (left == 0)
            grows = good >= self._growth_interval
            # Both products are made: where() between Python numbers would take the default dtype.
            moved = torch.where(grows, self.scale * self._growth_factor, self.scale)
            moved = torch.where(shrinks, self.scale * self._backoff_factor, moved)
            self._next = (
                moved.clamp(min=self._min_loss_scale, max=self._max_loss_scale),
                good * ~grows,
                torch.where(overflow, left, self._hysteresis),
            )
        return self._next


def _counter(value: int, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=torch.int32, device=device)
