"""An optimizer that holds the FP32 masters for good, as in Apex, and is stepped by its owner.

Nothing of the optimizer is replaced. A hook before each step takes the gradients away if they are
not finite, so that the step does nothing; one after it writes the masters to the model. Where a
fused step can stand in for the optimizer's own, the first hook runs it and takes the gradients away
as well.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from lightning_mp.amp.closure_step import evaluates_closure
from lightning_mp.amp.fused_step import apply_fused_step, can_fuse
from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.gradient_raise import widened
from lightning_mp.amp.master_swap import MasterSwap
from lightning_mp.amp.shared_gradients import SharedGradients
from lightning_mp.kernels.reference import finite_flags

__all__ = ["OwnedOptimizer"]


class OwnedOptimizer:
    """Put masters into an optimizer's groups and follow its steps.

    Between backward and step a weight's gradient is one unscaled FP32 tensor, ``.grad`` of the
    model's parameter and of its master alike, so that clipping works on either. After a step the
    masters have none, as in Apex; a weight without a master keeps its gradient until it is zeroed.

    Args:
        optimizer: A torch optimizer over the model's parameters.
        gradients: Where the gradients of the model stand.
        names: Qualified name of each model parameter.
        on_step: Called after each step that found gradients, with what was found in them.
        is_fusing: Whether the step of a known optimizer is replaced by a fused one.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        gradients: SharedGradients,
        names: Mapping[Tensor, str],
        *,
        on_step: Callable[[GradientCheck], None],
        is_fusing: bool = True,
    ) -> None:
        self.optimizer = optimizer
        self._gradients = gradients
        self._masters = gradients.masters
        self._names = names
        self._on_step = on_step
        self._is_fusing = is_fusing
        self._is_fused = False
        self._opened: list[Tensor] = []
        self._swap = MasterSwap(optimizer, self._masters)
        self._swap.hold()
        self._is_stepping = self._is_evaluating = False
        # What each evaluation of the step in progress found; one, where there is no closure.
        self._checks: list[GradientCheck] = []
        self._taken: list[tuple[Tensor, Tensor]] = []
        self._start: list[Tensor] | None = None
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def parameters(self) -> list[Tensor]:
        """The optimizer's model parameters, groups added since included."""
        return self._swap.parameters

    @property
    def keeps_scaled(self) -> bool:
        """Whether the optimizer wants its gradients half and scaled, as FusedSGD may."""
        return not getattr(self.optimizer, "materialize_master_grads", True)

    def refresh(self) -> None:
        """Give groups that were added their masters, and end a step that has failed midway."""
        self._swap.hold()
        if self._is_stepping and not self._is_evaluating:
            self._finish()

    def detach(self) -> None:
        """Give the optimizer back over the model's parameters, without gradients."""
        self.refresh()
        for handle in self._handles:
            handle.remove()
        for parameter in self.parameters:
            parameter.grad = self._masters.of(parameter).grad = None
        self._swap.release()
        self._swap.detach()

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.refresh()
        # The optimizer itself is the first of the arguments.
        bound = inspect.signature(type(optimizer).step).bind_partial(*args, **kwargs)
        closure = bound.arguments.get("closure")
        if closure is None:
            self._refuse_unready()
        hooks = (self._before_step, self._after_step)
        self._is_fused = self._is_fusing and can_fuse(optimizer, self._masters, own_hooks=hooks)
        if closure is not None or not self._is_fused:
            self._masters.adopt(self.parameters)
        if not self._is_fused:
            self._opened = self.parameters
            self._masters.open(self._opened)
        self._is_stepping, self._checks = True, []
        if closure is None:
            self._decide()
            return None
        if evaluates_closure(optimizer):
            targets = (self._masters.of(item) for item in self.parameters)
            self._start = [item.detach().clone() for item in targets]
        bound.arguments["closure"] = self._deciding(closure)
        return bound.args, bound.kwargs

    def _deciding(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            self._give_back()
            # The optimizer may have moved the masters since (LBFGS and its kind).
            self._push()
            self._is_evaluating = True
            try:
                with torch.enable_grad():
                    result = closure()
            finally:
                self._is_evaluating = False
            self._refuse_unready()
            self._decide()
            return result

        return evaluate

    def _refuse_unready(self) -> None:
        name = type(self.optimizer).__name__
        for parameter in self.parameters:
            if not self.keeps_scaled and self._gradients.scale_of(parameter) is not None:
                raise RuntimeError(
                    f"{name}.step() with gradients that are still scaled: the last backward was "
                    "in amp.scale_loss(..., delay_unscale=True); allowed: unscaled ones; leave "
                    "delay_unscale out for the last backward before the step"
                )
            if self._gradients.is_stray(parameter):
                raise RuntimeError(
                    f"{name}.step() with half gradients that no amp.scale_loss has unscaled; "
                    "allowed: those of a backward inside it; write 'with amp.scale_loss(loss, "
                    "optimizer) as scaled_loss: scaled_loss.backward()'"
                )

    @torch.no_grad()
    def _decide(self) -> None:
        """Take the gradients away if the step must be skipped, or was a fused one."""
        scale = self._common_scale()
        if scale is not None:
            present = [item for item in self.parameters if item.grad is not None]
            self._step_fused(present, self._check_of(present), factor=scale.reciprocal())
            return
        present = [item for item in self.parameters if self._gradients.collect(item) is not None]
        for parameter in present:
            # Without a master the update happens in the weight's own dtype (O3).
            if self._masters.of(parameter) is parameter:
                assert parameter.grad is not None
                parameter.grad = parameter.grad.to(parameter.dtype)
        check = self._check_of(present)
        if self._is_fused:
            self._step_fused(present, check)
            return
        self._checks.append(check)
        optimizer: Any = self.optimizer
        if getattr(optimizer, "_step_supports_amp_scaling", False) and present:
            # Such an optimizer skips by itself, on the device.
            optimizer.grad_scale, optimizer.found_inf = None, check.found_inf
        elif present and check.flag.read() and not (len(self._checks) > 1 and self._recovers):
            self._take_away(present)

    def _check_of(self, present: list[Tensor]) -> GradientCheck:
        # What the backward's end has seen is not looked at again.
        return self._gradients.check_of(present) or GradientCheck(present, self._names)

    def _common_scale(self) -> Tensor | None:
        """Return the scale that all gradients have, for a fused step to undo.

        Without one, gradients that are still scaled are unscaled here.
        """
        scales: dict[Tensor, Tensor] = {}
        num_present = 0
        for parameter in self.parameters:
            num_present += self._gradients.of(parameter) is not None
            scale = self._gradients.scale_of(parameter)
            if scale is not None:
                scales[parameter] = scale
        first = next(iter(scales.values()), None)
        is_common = len(scales) == num_present and all(item is first for item in scales.values())
        if first is None or (self._is_fused and is_common):
            return first
        for parameter, scale in scales.items():
            gradient = self._gradients.of(parameter)
            assert gradient is not None
            self._gradients.put(parameter, widened(gradient) / scale.to(gradient.device))
        return None

    def _step_fused(
        self, present: list[Tensor], check: GradientCheck, factor: Tensor | None = None
    ) -> None:
        self._checks.append(check)
        apply_fused_step(self.optimizer, self._masters, found_inf=check.found_inf, factor=factor)
        self._take_away(present)

    @property
    def _recovers(self) -> bool:
        # A line search may meet a non-finite trial and go back; what counts is the end.
        groups = self.optimizer.param_groups
        return any(group.get("line_search_fn") is not None for group in groups)

    def _take_away(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            target = self._masters.of(parameter)
            if target.grad is not None:
                self._taken.append((target, target.grad))
                target.grad = None

    def _give_back(self) -> None:
        for target, gradient in self._taken:
            target.grad = gradient
        self._taken = []

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._finish()

    def _finish(self) -> None:
        self._is_stepping = False
        for name in ("grad_scale", "found_inf"):
            self.optimizer.__dict__.pop(name, None)
        check = self._undo_if_not_finite()
        self._give_back()
        if not self._is_fused:
            self._push()
        self._masters.close(self._opened)
        self._opened = []
        for parameter in self.parameters:
            master = self._masters.of(parameter)
            if master is not parameter:
                master.grad = None
                self._gradients.note_use(parameter)
        self._checks, self._start = [], None
        if check is not None and check.has_gradients:
            self._on_step(check)

    @torch.no_grad()
    def _undo_if_not_finite(self) -> GradientCheck | None:
        """Undo what an optimizer did before it met a non-finite gradient at another point.

        Returns:
            The check that tells how the step ended.
        """
        first = next(iter(self._checks), None)
        if self._start is None or len(self._checks) < 2:
            return first
        bad = next((check for check in self._checks if check.flag.read()), None)
        targets = [self._masters.of(item).detach() for item in self.parameters]
        if bad is None or (self._recovers and bool(finite_flags(targets).all())):
            return first
        for target, value in zip(targets, self._start, strict=True):
            target.copy_(value)
        if isinstance(self.optimizer, LBFGS):
            # The curvature that led there is not finite either: it starts afresh.
            self.optimizer.state.clear()
        return bad

    def _push(self) -> None:
        self._masters.push(self.parameters)
