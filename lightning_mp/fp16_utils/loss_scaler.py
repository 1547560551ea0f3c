"""The fixed loss scale of hand-written loops."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_mp import amp
from lightning_mp.amp.gradient_check import GradientCheck

__all__ = ["LossScaler"]


class LossScaler:
    """Multiply losses by a fixed number.

    Args:
        scale: The number, above 0.

    Raises:
        ValueError: If ``scale`` is out of its range.

    Example:
        >>> LossScaler(128.0).loss_scale
        128.0
    """

    def __init__(self, scale: float = 1.0) -> None:
        self._engine = amp.LossScaler(scale)

    @property
    def loss_scale(self) -> float:
        """The scale; waits for the device that the last loss was on.

        Raises:
            ValueError: If it is set to a number out of range.
        """
        return self._engine.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._engine = amp.LossScaler(float(value))

    @property
    def cur_scale(self) -> float:
        """The same under its other name."""
        return self.loss_scale

    @cur_scale.setter
    def cur_scale(self, value: float) -> None:
        self.loss_scale = value

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        """Run the backward of the loss times the scale.

        Args:
            loss: Scalar loss of any floating dtype.
            retain_graph: As in ``Tensor.backward``.
        """
        self._engine.scale_loss(loss).backward(retain_graph=retain_graph)

    def has_overflow(self, params: Iterable[Tensor]) -> bool:
        """Return whether any gradient has an infinite or NaN element; waits for the device.

        Apex looked only where the scale is dynamic, so a fixed one let such gradients through.

        Args:
            params: Parameters, with or without gradients.
        """
        return GradientCheck([item for item in params if item.grad is not None], {}).flag.read()

    def update_scale(self, overflow: bool) -> None:
        """Do nothing: this scale does not move.

        Args:
            overflow: Whether the step overflowed.
        """

    def scale_gradient(
        self, module: Any, grad_in: Sequence[Tensor | None], grad_out: Any
    ) -> tuple[Tensor | None, ...]:
        """Multiply gradients by the scale; a backward hook of a module.

        Args:
            module: Not used.
            grad_in: Gradients of the module's inputs, ``None`` for those that need none.
            grad_out: Not used.

        Returns:
            The scaled gradients.
        """
        scale = self.loss_scale
        return tuple(None if item is None else item * scale for item in grad_in)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers."""
        return dict(self._engine.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; a fixed scale keeps its own number.

        Args:
            state: The state.

        Raises:
            ValueError: If it is impossible; nothing is changed then.
        """
        self._engine.load_state_dict(state)
