"""One optimizer's step under an opt level: unscale, clip, decide, update, copy to half.

Three paths, chosen at every step:

* fast: nobody looks at the gradients, so clipping is only recorded and all happens in pass 2;
* looked: somebody reads or writes gradients before the step, so each weight gets one unscaled FP32
  gradient that is both the model parameter's and the master's ``.grad``; then the same pass 2;
* plain: any other optimizer; FP32 gradients as above and its own ``step`` on the masters.

A step whose gradients are not all finite changes nothing, whatever the loss scale.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.fused_step import apply_fused_step, can_fuse
from lightning_mp.amp.gradient_check import GradientCheck, dense_values
from lightning_mp.amp.gradient_clip import ClipRule, clip_gradients_, scale_gradients_
from lightning_mp.amp.gradient_raise import raise_gradients
from lightning_mp.amp.gradient_unscale import unscale_gradients
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.master_swap import MasterSwap
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.skip_ledger import SkipLedger
from lightning_mp.amp.step_guard import StepGuard
from lightning_mp.amp.unscaled_gradients import UnscaledGradients
from lightning_mp.kernels.reference import clip_coefficient, total_norm

__all__ = ["OptimizerStep"]


class OptimizerStep:
    """Run the steps of one optimizer.

    Args:
        optimizer: A torch optimizer over the model's parameters.
        masters: Masters of the model.
        scaler: Scaler of the loss that the gradients come from.
        names: Qualified name of each model parameter.
        unscaled: Which gradients are unscaled, shared by all optimizers of the model.
        is_fusing: Whether the step of a known optimizer is replaced by a fused one.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        masters: MasterWeights,
        scaler: LossScaler,
        names: Mapping[Tensor, str],
        unscaled: UnscaledGradients,
        *,
        is_fusing: bool = True,
    ) -> None:
        self.optimizer = optimizer
        self.swap = MasterSwap(optimizer, masters)
        self.ledger = SkipLedger()
        self.path = "none yet"
        self.last_check: GradientCheck | None = None
        # Of an optimizer that gets its closure: whether it evaluates it once, at the start.
        self.evaluates_at_start = False
        self._masters = masters
        self._scaler = scaler
        self._names = names
        self._unscaled = unscaled
        self._is_fusing = is_fusing
        self._check: GradientCheck | None = None
        # Gradients of the step in preparation, unscaled; each is its master's gradient too.
        self._shared: dict[Tensor, Tensor] | None = None
        self._recorded: ClipRule | None = None
        self._may_record = False
        guard = StepGuard(lambda: self.swap.is_in or not self._must_unscale)
        self._guard = optimizer.register_step_pre_hook(guard)

    @property
    def can_fuse(self) -> bool:
        """Whether the update needs no FP32 gradients and no call of the optimizer's own step."""
        return self._is_fusing and can_fuse(self.optimizer, self._masters)

    @property
    def gradient_norm(self) -> Tensor | None:
        """Float32 scalar on the device: L2 norm of the last step's gradients, as pass 1 found it.

        Unscaled and not yet clipped; of gradients that a hook has replaced, as it left them.
        ``None`` before the first step, after one without gradients, and after one whose gradients
        were there unscaled (:attr:`is_unscaled`): a step does not compute it then.
        """
        check = self.last_check
        return check.norm if check is not None and check.has_gradients else None

    @property
    def is_unscaled(self) -> bool:
        """Whether a step is in preparation and its gradients are there, unscaled and in FP32."""
        return self._shared is not None

    @torch.no_grad()
    def unscale(self) -> GradientCheck:
        """Give each weight one unscaled FP32 gradient, shared with its master; once per step.

        Returns:
            What pass 1 found in the gradients.
        """
        parameters = self._with_gradient()
        if self._shared is not None:
            self._check = self._check or GradientCheck(parameters, self._names)
            return self._check
        inv_scale = None if self._scaler.is_identity else self._scaler.inv_scale
        if any(map(self._unscaled.has, parameters)):
            self._check = GradientCheck(parameters, self._names)
            scaled = [item for item in parameters if not self._unscaled.has(item)]
            raise_gradients(parameters, self._masters)
            if scaled and inv_scale is not None:
                scale_gradients_([dense_values(item) for item in scaled], inv_scale)
                # Of gradients of two scales.
                self._check.norm = None
        else:
            flags = unscale_gradients(parameters, self._masters, inv_scale)
            self._check = GradientCheck(parameters, self._names, flags=flags)
        self._shared = {}
        for parameter in parameters:
            assert parameter.grad is not None
            self._shared[parameter] = parameter.grad
            self._masters.of(parameter).grad = parameter.grad
            self._unscaled.add(parameter)
        if self._recorded is not None:
            rule, self._recorded = self._recorded, None
            self._clip_now(parameters, rule)
        return self._check

    def unscale_anew(self) -> GradientCheck:
        """Unscale the gradients of a new evaluation of the closure.

        Returns:
            What pass 1 found in them.
        """
        self.forget()
        return self.unscale()

    @torch.no_grad()
    def clip(self, rule: ClipRule) -> None:
        """Clip the unscaled gradients, or note the rule for pass 2 if nobody can tell.

        Args:
            rule: What to clip by.
        """
        if self._may_record and self._shared is None and self._recorded is None:
            self._recorded = rule
            return
        self.unscale()
        self.collect()
        self._clip_now(self._with_gradient(), rule)

    @torch.no_grad()
    def step(self, before_update: Callable[[], None], *, is_looked: bool, **kwargs: Any) -> None:
        """Step the optimizer unless a gradient is not finite.

        Args:
            before_update: Runs between unscaling and the update; hooks and clipping go here.
            is_looked: Whether ``before_update`` may read or write gradients other than by
                :meth:`clip`.
            **kwargs: Passed on to ``optimizer.step``.
        """
        is_fused = self.can_fuse and not kwargs
        has_unscaled = any(map(self._unscaled.has, self.swap.parameters))
        if is_looked or has_unscaled or (not is_fused and self._must_unscale):
            self.unscale()
        self.path = "plain" if not is_fused else "fast" if self._shared is None else "looked"
        self._run_before_update(before_update, may_record=is_fused)
        parameters = self._with_gradient()
        check = self._check or self._new_check(parameters)
        if is_fused:
            self._fused_update(check)
        else:
            self._masters.adopt(parameters)
            self._plain_update(check, **kwargs)
        self.finish(check)

    def detach(self) -> None:
        """Give the optimizer back as an ordinary one over the model's parameters."""
        self.forget()
        for parameter in self.swap.parameters:
            # Perhaps still scaled, and of no use to whoever gets the model.
            parameter.grad = None
        self._guard.remove()
        self.swap.detach()

    @property
    def _must_unscale(self) -> bool:
        return self._masters.has_masters or not self._scaler.is_identity

    def _with_gradient(self) -> list[Tensor]:
        return [item for item in self.swap.parameters if item.grad is not None]

    def _clip_now(self, parameters: list[Tensor], rule: ClipRule) -> None:
        values = [dense_values(parameter) for parameter in parameters]
        clip_gradients_(values, rule, like_fused=self.can_fuse)

    def _run_before_update(self, before_update: Callable[[], None], *, may_record: bool) -> None:
        self._may_record = may_record
        try:
            # Hooks are the user's code and may build graphs of their own.
            with torch.enable_grad():
                if self._shared is None:
                    before_update()
                    return
                with self.swap.masters_in():
                    before_update()
        finally:
            self._may_record = False
        self.collect()

    def collect(self) -> None:
        """Honour what hooks did to ``.grad`` of a model parameter or of its master.

        A hook may have put another tensor, or None, on either side; the side that changed counts,
        the master's if both did.
        """
        assert self._shared is not None
        for parameter in self.swap.parameters:
            master, shared = self._masters.of(parameter), self._shared.get(parameter)
            if master.grad is shared and parameter.grad is shared:
                continue
            # Pass 1 has not seen this gradient.
            self._check = None
            gradient = parameter.grad if master.grad is shared else master.grad
            if gradient is not None and master is not parameter:
                gradient = gradient.to(torch.float32)
            parameter.grad = master.grad = gradient
            self._shared.pop(parameter, None)
            if gradient is not None:
                self._shared[parameter] = gradient
                self._unscaled.add(parameter)

    def _new_check(self, parameters: list[Tensor]) -> GradientCheck:
        if self._shared is not None:
            return GradientCheck(parameters, self._names)
        rule = self._recorded
        is_l2 = rule is not None and rule.norm_type == 2.0
        return GradientCheck(
            parameters,
            self._names,
            inv_scale=self._scaler.inv_scale,
            max_norm=rule.max_norm if rule is not None and is_l2 else None,
        )

    def _fused_update(self, check: GradientCheck) -> None:
        rule, factor = self._recorded, None
        if self._shared is None:
            factor = check.factor
            if rule is not None and rule.max_norm is not None and rule.norm_type != 2.0:
                scaled = [dense_values(parameter) for parameter in self._with_gradient()]
                norm = total_norm(scaled, rule.norm_type) * factor
                factor = factor * clip_coefficient(norm, rule.max_norm)
        apply_fused_step(
            self.optimizer,
            self._masters,
            found_inf=check.found_inf,
            factor=factor,
            clip_value=None if rule is None else rule.clip_value,
        )

    def _plain_update(self, check: GradientCheck, **kwargs: Any) -> None:
        if getattr(self.optimizer, "_step_supports_amp_scaling", False) and check.has_gradients:
            # Such an optimizer skips by itself, on the device.
            self._step_on_masters(found_inf=check.found_inf, **kwargs)
        elif not check.flag.read():
            self._step_on_masters(**kwargs)

    def _step_on_masters(self, found_inf: Tensor | None = None, **kwargs: Any) -> None:
        optimizer: Any = self.optimizer
        for parameter in self._with_gradient():
            gradient = parameter.grad
            # Without a master the update happens in the weight's own dtype (O3).
            if self._masters.of(parameter) is parameter and gradient is not None:
                parameter.grad = gradient.to(parameter.dtype)
        if found_inf is not None:
            optimizer.grad_scale, optimizer.found_inf = None, found_inf
        try:
            with self.swap.masters_in():
                if found_inf is not None:
                    self._lay_out_gradients()
                with torch.enable_grad():
                    optimizer.step(**kwargs)
                self._masters.push(self._with_gradient())
        finally:
            if found_inf is not None:
                del optimizer.grad_scale, optimizer.found_inf

    def _lay_out_gradients(self) -> None:
        # torch's fused CPU optimizers read weight and gradient in storage order.
        for parameter in self._with_gradient():
            target = self._masters.of(parameter)
            gradient = target.grad
            if gradient is None or gradient.layout != torch.strided:
                continue
            if gradient.stride() != target.stride():
                target.grad = torch.empty_like(target, requires_grad=False).copy_(gradient)

    def finish(self, check: GradientCheck) -> None:
        """Forget this step's gradients and tell the scaler and the schedulers how it ended.

        Args:
            check: What pass 1 found.
        """
        if self._shared is not None:
            # Anew: without masters the step has put half gradients in place of these.
            for parameter in self._with_gradient():
                self._unscaled.add(parameter)
        self.forget()
        self.last_check = check
        if check.has_gradients:
            self._scaler.record(check.found_inf)
            self.ledger.record(check.flag)

    def forget(self) -> None:
        """Forget the step in preparation; gradients stay where and as they are."""
        # Not those in _shared only: a hook may have given a gradient to others.
        for parameter in self.swap.parameters if self._shared is not None else ():
            master = self._masters.of(parameter)
            if master is not parameter:
                master.grad = None
        self._shared = self._check = self._recorded = None
