"""Where the gradients of a model stand between its backwards.

Where the optimizer owns the masters, one tensor is the gradient of a model parameter and of its
master at once, so that it does not matter on which side somebody reads it, clips it, replaces it or
sets it to None. Elsewhere it stands at the model's parameter only.
"""

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, distributed

from lightning_mp.amp.gradient_check import GradientCheck, dense_values
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.unscaled_gradients import UnscaledGradients

__all__ = ["SharedGradients"]


class _Note(NamedTuple):
    """The gradient that was put at a parameter.

    Attributes:
        gradient: The gradient.
        scale: Its scale, if it is still scaled.
        used_version: How often it had been written when a step used it, None before that.
        check: What was found in it, None if nobody looked.
        checked_version: How often it had been written then.
    """

    gradient: weakref.ref[Tensor]
    scale: Tensor | None = None
    used_version: int | None = None
    check: GradientCheck | None = None
    checked_version: int = 0


class SharedGradients:
    """Put gradients at parameters and find out later what became of them.

    Args:
        masters: Masters of the model.
        unscaled: Which gradients are unscaled, for those who read them from the parameters.
        is_shared: Whether a master gets the gradient too.
    """

    def __init__(
        self, masters: MasterWeights, unscaled: UnscaledGradients, *, is_shared: bool
    ) -> None:
        self.masters = masters
        self._unscaled = unscaled
        self._is_shared = is_shared
        self._notes: dict[Tensor, _Note] = {}

    def target_of(self, parameter: Tensor) -> Tensor:
        """Return the tensor whose gradient an optimizer reads.

        Args:
            parameter: A model parameter.
        """
        return self.masters.of(parameter) if self._is_shared else parameter

    def of(self, parameter: Tensor) -> Tensor | None:
        """Return the gradient that counts: that of the side that was changed last.

        Of two sides that were both changed, the master's counts.

        Args:
            parameter: A model parameter.

        Returns:
            A gradient in the dtype that it was left in, or None.
        """
        target = self.target_of(parameter)
        if target is parameter:
            return parameter.grad
        noted = self._noted(parameter)
        if noted is None or target.grad is not noted:
            return target.grad
        return parameter.grad

    def scale_of(self, parameter: Tensor) -> Tensor | None:
        """Return the scale of the gradient that counts, None if it is unscaled.

        Args:
            parameter: A model parameter.
        """
        noted = self._noted(parameter)
        if noted is None or self.of(parameter) is not noted:
            return None
        return self._notes[parameter].scale

    def is_stray(self, parameter: Tensor) -> bool:
        """Tell whether a half parameter has a gradient that never went through a window.

        Args:
            parameter: A model parameter.
        """
        target, gradient = self.target_of(parameter), parameter.grad
        if target is parameter or target.grad is not None or gradient is None:
            return False
        if gradient is not self._noted(parameter):
            return True
        # Autograd adds to a gradient that an earlier step has used; zeroing writes to it too.
        used_version = self._notes[parameter].used_version
        return used_version not in (None, gradient._version) and bool(dense_values(parameter).any())

    def note_use(self, parameter: Tensor) -> None:
        """Note that a step has used the gradient of a parameter.

        Args:
            parameter: A model parameter.
        """
        noted = self._noted(parameter)
        if noted is not None:
            note = self._notes[parameter]
            self._notes[parameter] = note._replace(used_version=noted._version)

    def put(
        self, parameter: Tensor, gradient: Tensor | None, *, scale: Tensor | None = None
    ) -> None:
        """Make a tensor the gradient of a parameter, on both sides.

        Args:
            parameter: A model parameter.
            gradient: Its gradient; FP32 at a half parameter with a master, unless it is scaled.
            scale: Scale of a gradient that is to be unscaled later.
        """
        target = self.target_of(parameter)
        parameter.grad = gradient
        if target is not parameter:
            if gradient is not None and gradient.dtype != target.dtype:
                # A scaled gradient stays half until it is unscaled.
                target.grad_dtype = None
            target.grad = gradient
        self._notes.pop(parameter, None)
        if gradient is not None:
            self._notes[parameter] = _Note(weakref.ref(gradient), scale)
            if scale is None:
                self._unscaled.add(parameter)

    def note_check(self, parameters: Sequence[Tensor], check: GradientCheck) -> None:
        """Note what was found in gradients.

        Args:
            parameters: Model parameters whose gradients are as they were looked at.
            check: What was found.
        """
        for parameter in parameters:
            noted = self._noted(parameter)
            if noted is not None:
                self._notes[parameter] = self._notes[parameter]._replace(
                    check=check, checked_version=noted._version
                )

    def check_of(self, parameters: Sequence[Tensor]) -> GradientCheck | None:
        """Return the check that has seen these gradients and no others, as they are now.

        Args:
            parameters: Model parameters that have a gradient.

        Returns:
            The check; ``None`` if there is none, or if a gradient may have been written since.
        """
        if _has_other_processes():
            return None
        checks = {self._valid_check(parameter) for parameter in parameters}
        check = checks.pop() if len(checks) == 1 else None
        return check if check is not None and check.num_gradients == len(parameters) else None

    def collect(self, parameter: Tensor) -> Tensor | None:
        """Bring both sides together again after somebody may have written to one of them.

        Args:
            parameter: A model parameter.

        Returns:
            The gradient that counts; FP32 where the target is.
        """
        gradient, target = self.of(parameter), self.target_of(parameter)
        if gradient is not None and target is not parameter and gradient.dtype != target.dtype:
            gradient = gradient.to(target.dtype)
        if gradient is not parameter.grad or gradient is not target.grad:
            self.put(parameter, gradient)
        return gradient

    def clear(self) -> None:
        """Forget all parameters."""
        self._notes.clear()

    def _valid_check(self, parameter: Tensor) -> GradientCheck | None:
        noted = self._noted(parameter)
        if noted is None or self.of(parameter) is not noted:
            return None
        note = self._notes[parameter]
        return note.check if note.checked_version == noted._version else None

    def _noted(self, parameter: Tensor) -> Tensor | None:
        note = self._notes.get(parameter)
        return None if note is None else note.gradient()


def _has_other_processes() -> bool:
    # An exchange with them leaves no trace on the tensors that it writes.
    is_started = distributed.is_available() and distributed.is_initialized()
    return is_started and distributed.get_world_size() > 1
