"""An optimizer that holds the FP32 masters for good, as in Apex, and is stepped by its owner.

Nothing of the optimizer is replaced. A hook before each step takes the gradients away if they are
not finite, so that the step does nothing; one after it writes the masters to the model.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.master_swap import MasterSwap
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.scaled_backward import ScaledBackward

__all__ = ["OwnedOptimizer"]


class OwnedOptimizer:
    """Put masters into an optimizer's groups and follow its steps.

    Between backward and step a weight's gradient is one unscaled FP32 tensor, ``.grad`` of the
    model's parameter and of its master alike, so that clipping works on either. After a step the
    masters have none, as in Apex.

    Args:
        optimizer: A torch optimizer over the model's parameters.
        masters: Masters of the model.
        names: Qualified name of each model parameter.
    """

    def __init__(
        self, optimizer: Optimizer, masters: MasterWeights, names: Mapping[Tensor, str]
    ) -> None:
        self.optimizer = optimizer
        self.num_skipped_steps = 0
        self._masters = masters
        self._names = names
        self._swap = MasterSwap(optimizer, masters)
        self._swap.hold()
        self._window: ScaledBackward | None = None
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def parameters(self) -> list[Tensor]:
        """The optimizer's model parameters, groups added since included."""
        return self._swap.parameters

    def open_window(self, scaler: LossScaler) -> None:
        """Begin a backward under a scaler; a window open at the same scale goes on.

        Args:
            scaler: Scaler of the loss.
        """
        if self._window is not None and self._window.has_scale_of(scaler):
            return
        self.close_window()
        self._swap.hold()
        for parameter in self.parameters:
            master = self._masters.of(parameter)
            if master is not parameter:
                # The master's tells whether the gradients were zeroed, or used by a step.
                parameter.grad, master.grad = master.grad, None
        self._window = ScaledBackward(self.parameters, self._masters, scaler, self._names)

    def close_window(self) -> GradientCheck | None:
        """Unscale and add up the gradients of the open window.

        Returns:
            What was found in the new gradients, ``None`` if no window was open.
        """
        window, self._window = self._window, None
        if window is None:
            return None
        check = window.close()
        self._share()
        return check

    def abandon_window(self) -> None:
        """Drop what the open window has gathered; earlier gradients are as they were."""
        window, self._window = self._window, None
        if window is not None:
            window.abandon()
            self._share()

    def detach(self) -> None:
        """Give the optimizer back over the model's parameters, without gradients."""
        self._window = None
        for handle in self._handles:
            handle.remove()
        for parameter in self.parameters:
            parameter.grad = self._masters.of(parameter).grad = None
        self._swap.release()
        self._swap.detach()

    def _share(self) -> None:
        for parameter in self.parameters:
            self._masters.of(parameter).grad = parameter.grad

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._swap.hold()
        self.close_window()
        self._masters.adopt(self.parameters)
        # The optimizer itself is the first of the arguments.
        bound = inspect.signature(type(optimizer).step).bind_partial(*args, **kwargs)
        closure = bound.arguments.get("closure")
        if closure is None:
            self._decide()
            return None
        bound.arguments["closure"] = self._deciding(closure)
        return bound.args, bound.kwargs

    def _deciding(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            # The optimizer may have moved the masters since (LBFGS and its kind).
            with torch.no_grad():
                self._masters.push(self.parameters)
            with torch.enable_grad():
                result = closure()
            self.close_window()
            self._decide()
            return result

        return evaluate

    @torch.no_grad()
    def _decide(self) -> None:
        """Take the gradients away if the step must be skipped."""
        present = [item for item in self.parameters if self._masters.of(item).grad is not None]
        for parameter in present:
            target = self._masters.of(parameter)
            # Whichever of the two was replaced since, by a hook or by hand; the master's counts.
            parameter.grad = target.grad
        check = GradientCheck(present, self._names)
        optimizer: Any = self.optimizer
        if getattr(optimizer, "_step_supports_amp_scaling", False) and present:
            # Such an optimizer skips by itself, on the device.
            optimizer.grad_scale, optimizer.found_inf = None, check.found_inf
        elif present and check.flag.read():
            for parameter in present:
                parameter.grad = self._masters.of(parameter).grad = None
        for parameter in present:
            # Without a master the update happens in the weight's own dtype (O3).
            if self._masters.of(parameter) is parameter and parameter.grad is not None:
                parameter.grad = parameter.grad.to(parameter.dtype)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        self._masters.push(self.parameters)
        for parameter in self.parameters:
            master = self._masters.of(parameter)
            if master is not parameter:
                master.grad = None


def parameters_of(optimizers: Iterable[OwnedOptimizer]) -> list[Tensor]:
    """Return the model parameters of several optimizers, each once.

    Args:
        optimizers: Optimizers that hold masters.
    """
    return list(dict.fromkeys(item for owned in optimizers for item in owned.parameters))
