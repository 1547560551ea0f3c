"""The mixed-precision engine: everything an opt level does, for any training loop.

A loop converts the model once, attaches its optimizers, and then for each step runs the forward in
:meth:`AmpEngine.forward_context`, calls :meth:`AmpEngine.scale_loss` before the backward and steps
through :meth:`AmpEngine.step_of`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_mp.amp.forward_casts import ForwardCasts
from lightning_mp.amp.function_casts import FunctionCasts, Implementation
from lightning_mp.amp.gradient_scale import cast_gradients, rescale_gradients
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.model_cast import check_castable
from lightning_mp.amp.opt_levels import OptLevelProperties
from lightning_mp.amp.optimizer_step import OptimizerStep
from lightning_mp.amp.overflow import OverflowRecord
from lightning_mp.amp.overflow_log import OverflowLog
from lightning_mp.amp.owned_backwards import OwnedBackwards
from lightning_mp.amp.scheduler_guard import SchedulerGuard
from lightning_mp.amp.separate_losses import SeparateLosses
from lightning_mp.amp.split_masters import SplitMasterWeights
from lightning_mp.amp.unscaled_gradients import UnscaledGradients
from lightning_mp.amp.vanishing_eps import warn_of_vanishing_eps

__all__ = ["AmpEngine"]


class AmpEngine:
    """Apply an opt level to one or more models and their optimizers.

    Args:
        properties: Resolved properties of the level.
        scaler: Scaler of the loss, or one for each of several losses.
        output_dtype: Dtype that the floating outputs of a model's own forward become; ``None`` for
            FP32 where the model or its functions are cast, and for no change where they are not.
        allow_banned: Whether banned functions run in FP32 at O1 instead of being refused.
        raises_inputs: Whether half inputs of a model that is not cast become FP32.
        function_casts: Implementation of O1's casts: ``"auto"``, ``"native"`` or ``"python"``.
        fused: Whether the step of a known optimizer on masters is replaced by a fused one.

    Example:
        >>> from lightning_mp.amp import AmpEngine, LossScaler, resolve_opt_level
        >>> properties = resolve_opt_level("O2", half_dtype=torch.bfloat16)
        >>> engine = AmpEngine(properties, LossScaler(properties.loss_scale))
        >>> model = nn.Linear(7, 3)
        >>> engine.convert(model)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> engine.attach([optimizer])
        >>> with engine.forward_context():
        ...     loss = nn.functional.mse_loss(model(torch.randn(5, 7)), torch.randn(5, 3))
        >>> engine.scale_loss(loss).backward()
        >>> engine.step(optimizer)
        >>> model.weight.dtype, engine.skipped_steps
        (torch.bfloat16, 0)
    """

    def __init__(
        self,
        properties: OptLevelProperties,
        scaler: LossScaler | Sequence[LossScaler],
        *,
        output_dtype: torch.dtype | None = None,
        allow_banned: bool = False,
        raises_inputs: bool = False,
        function_casts: Implementation = "auto",
        fused: bool = True,
    ) -> None:
        self.properties = properties
        self._is_fusing = fused
        self.scalers = (scaler,) if isinstance(scaler, LossScaler) else tuple(scaler)
        self._forward_casts = ForwardCasts(
            properties,
            output_dtype=output_dtype,
            allow_banned=allow_banned,
            raises_inputs=raises_inputs,
            implementation=function_casts,
        )
        self._log = OverflowLog()
        self._masters: MasterWeights | None = None
        self._num_models = 0
        self._names: dict[Tensor, str] = {}
        self._steps: dict[Optimizer, OptimizerStep] = {}
        self._owned: OwnedBackwards | None = None
        self._unscaled = UnscaledGradients()
        self._losses = SeparateLosses(self.scalers) if len(self.scalers) > 1 else None
        self._guards: list[SchedulerGuard] = []
        self._found_inf = torch.zeros(())

    @property
    def masters(self) -> MasterWeights:
        """The FP32 values behind the converted model.

        Raises:
            RuntimeError: No model was converted.
        """
        if self._masters is None:
            raise RuntimeError("no model was converted yet; call convert(model) first")
        return self._masters

    @property
    def scaler(self) -> LossScaler:
        """The scaler of the loss; of the first, if there are several."""
        return self.scalers[0]

    @property
    def casts(self) -> FunctionCasts | None:
        """The casts of O1, ``None`` at other levels and before a model is converted."""
        return self._forward_casts.functions

    @property
    def is_converted(self) -> bool:
        """Whether a model is converted at present."""
        return self._masters is not None

    @property
    def found_inf(self) -> Tensor:
        """Float32 scalar on the device: 1 if the last optimizer step met a non-finite gradient."""
        return self._found_inf

    @property
    def loss_scale(self) -> float:
        """The loss scale of the next backward; reading it waits for the device."""
        return float(self.scaler.next_scale.item())

    @property
    def skipped_steps(self) -> int:
        """Number of optimizer steps skipped so far; reading it waits for the device."""
        if self._owned is not None:
            return int(self._owned.skipped_steps.item())
        return int(self._step_scaler.num_skipped_steps.item())

    def convert(self, *modules: nn.Module) -> None:
        """Cast models in place and hook their state dicts and forwards.

        Models of earlier calls stay converted, and may share parameters with these.

        Args:
            *modules: FP32 models, not wrapped for data parallelism.

        Raises:
            ValueError: One of the models cannot be cast; all are unchanged then.
        """
        if self.properties.half_dtype is not None:
            known = set() if self._masters is None else set(self._masters.half_parameters)
            for module in modules:
                check_castable(module, known)
        for module in modules:
            self._convert(module)
        self._forward_casts.add(modules, self.masters)

    def attach(self, optimizers: list[Optimizer]) -> None:
        """Take over optimizers of the converted model.

        Args:
            optimizers: Torch optimizers over the model's parameters; one that is attached already
                is left as it is.
        """
        self._prepare_for(optimizers)
        for optimizer in optimizers:
            if optimizer in self._steps:
                continue
            self._steps[optimizer] = OptimizerStep(
                optimizer,
                self.masters,
                self._step_scaler,
                self._names,
                self._unscaled,
                is_fusing=self._is_fusing,
            )

    def own(self, optimizers: Sequence[Optimizer]) -> OwnedBackwards:
        """Let optimizers hold the masters for good; their owner calls ``step``.

        Args:
            optimizers: Torch optimizers over the converted models' parameters; one that holds them
                already is left as it is.

        Returns:
            What runs their backwards and follows their steps.
        """
        self._prepare_for(optimizers)
        if self._owned is None:
            self._owned = OwnedBackwards(
                self.masters, self._names, self._log, is_fusing=self._is_fusing
            )
        for optimizer in optimizers:
            self._owned.own(optimizer)
        return self._owned

    def guard_scheduler(self, scheduler: Any, optimizer: Optimizer) -> None:
        """Hold a learning-rate scheduler while its optimizer skips.

        Args:
            scheduler: A torch scheduler.
            optimizer: Its optimizer; one that is not attached is left alone.
        """
        if optimizer in self._steps:
            self._guards.append(SchedulerGuard(scheduler, self._steps[optimizer].ledger))

    def step_of(self, optimizer: Optimizer) -> OptimizerStep:
        """Return the step engine of an attached optimizer.

        Args:
            optimizer: The optimizer.

        Raises:
            KeyError: The optimizer was not attached.
        """
        try:
            return self._steps[optimizer]
        except KeyError:
            raise KeyError(
                f"{type(optimizer).__name__} is not attached to this engine; pass it to attach() "
                "after the model was converted"
            ) from None

    @property
    def steps(self) -> Mapping[Optimizer, OptimizerStep]:
        """The step engine of each attached optimizer, in order."""
        return self._steps

    def forward_context(self) -> Any:
        """Return the context that the model's forward, its loss and its backward run in."""
        return self._forward_casts.context()

    def scale_loss(
        self, loss: Tensor, *, loss_id: int = 0, is_synchronising: bool = False
    ) -> Tensor:
        """Scale a loss and prepare the gradients that exist already for its backward.

        The scale moves here and nowhere else, so gradients made with the old one have been
        unscaled with it. Gradients of earlier backwards are raised to FP32, so that micro-batches
        are summed in FP32.

        Args:
            loss: Scalar loss of any floating dtype.
            loss_id: Index of the loss's scaler. With several, run the backward inside
                :meth:`ending_backward`.
            is_synchronising: Whether this backward averages gradients over processes in buckets of
                the parameters' dtype; FP32 sums are then rounded once, before it.

        Returns:
            The scaled loss in FP32, or the loss itself if nothing is scaled.
        """
        if self._losses is not None:
            for step in self._steps.values():
                step.forget()
            return self._losses.open(
                loss, loss_id, self._stepped_parameters(), self.masters, self._names
            )
        self.scaler.to(loss.device)
        ratio = self.scaler.update() if self.scaler.has_pending else None
        # In FP32 before they are rescaled: half gradients could overflow or lose bits by it.
        if ratio is not None or not is_synchronising:
            self._cast_gradients(torch.float32)
        for step in self._steps.values():
            step.forget()
        rescale_gradients(self._stepped_parameters(), self.scaler, self._unscaled, ratio)
        if is_synchronising:
            self._cast_gradients(self.properties.half_dtype)
        return loss if self.scaler.is_identity else self.scaler.scale_loss(loss)

    @contextmanager
    def ending_backward(self) -> Iterator[None]:
        """Surround the backward of a scaled loss; needed where there are several scalers."""
        try:
            yield
        except BaseException:
            if self._losses is not None:
                self._losses.abandon()
            raise
        if self._losses is not None:
            self._losses.close(self._steps, self._unscaled)

    def step(self, optimizer: Optimizer, before_update: Any = None, **kwargs: Any) -> None:
        """Step an attached optimizer unless a gradient is not finite.

        Args:
            optimizer: The optimizer.
            before_update: Called with FP32 gradients in place, before the update.
            **kwargs: ``is_looked`` and ``num_steps``, see :meth:`after_step`; the rest goes to
                ``optimizer.step``.
        """
        is_looked = kwargs.pop("is_looked", before_update is not None)
        num_steps = kwargs.pop("num_steps", 0)
        step = self.step_of(optimizer)
        step.step(before_update or _nothing, is_looked=is_looked, **kwargs)
        self.after_step(optimizer, num_steps=num_steps)

    def after_step(self, optimizer: Optimizer, *, num_steps: int) -> None:
        """Note how a step ended; nothing is read from the device.

        Args:
            optimizer: The optimizer that was stepped.
            num_steps: Number of steps before this one, for the overflow records.
        """
        check = self.step_of(optimizer).last_check
        if check is None or not check.has_gradients:
            return
        self._found_inf = check.found_inf
        scales = (self.scaler.scale, self.scaler.next_scale)
        self._log.note(
            check,
            scales if self._losses is None else self._losses.scales_of(optimizer),
            optimizer_index=list(self._steps).index(optimizer),
            num_steps=num_steps,
        )

    def overflows(self, *, wait: bool = False) -> list[OverflowRecord]:
        """Return the overflows since the last call.

        Args:
            wait: Wait for the device to tell of the latest steps too.
        """
        return self._log.take(wait=wait)

    def scaler_state(self) -> dict[str, Any]:
        """Return the state of the loss scaler, or of all of them, as plain values."""
        return dict(self.scaler.state_dict()) if self._losses is None else self._losses.state_dict()

    def load_scaler_state(self, state: Mapping[str, Any]) -> None:
        """Restore the loss scaler and go on counting skipped steps from it.

        Args:
            state: What :meth:`scaler_state` returned, or a ``GradScaler`` state.

        Raises:
            ValueError: The state is impossible; nothing is changed then.
        """
        if self._losses is None:
            self.scaler.load_state_dict(state.get("losses", [state])[0])
        else:
            self._losses.load_state_dict(state)
        self._log.go_on_from(self.skipped_steps)

    def restore(self) -> None:
        """Undo everything: FP32 weights, ordinary optimizers and schedulers, no hooks."""
        for guard in reversed(self._guards):
            guard.remove()
        for step in self._steps.values():
            step.detach()
        if self._owned is not None:
            self._owned.detach()
        self._forward_casts.remove()
        if self._masters is not None:
            self._masters.restore()
        if self.properties.half_dtype is not None:
            # Those of the FP32 parameters may still be scaled.
            for parameter in self._names:
                parameter.grad = None
        self._guards, self._num_models, self._masters = [], 0, None
        self._steps, self._owned, self._names = {}, None, {}
        self._unscaled.clear()

    def _convert(self, module: nn.Module) -> None:
        # One model is the rule; the parameters of later ones are told apart by a prefix.
        prefix = f"model{self._num_models}." if self._num_models else ""
        self._num_models += 1
        for name, parameter in module.named_parameters():
            self._names.setdefault(parameter, prefix + name)
        if self._masters is None:
            is_split = self.properties.master_weights == "split"
            masters_class = SplitMasterWeights if is_split else MasterWeights
            self._masters = masters_class(module, self.properties)
        else:
            self._masters.add(module)

    def _prepare_for(self, optimizers: Sequence[Optimizer]) -> None:
        """Move masters to their models' devices, choose O1's casts by these, drop idle masters."""
        self.masters.follow_devices()
        self._forward_casts.follow_devices()
        if optimizers and not self.properties.master_weights:
            warn_of_vanishing_eps(optimizers, self.properties)
            self.masters.drop()

    @property
    def _step_scaler(self) -> LossScaler:
        return self.scaler if self._losses is None else self._losses.step_scaler

    def _stepped_parameters(self) -> list[Tensor]:
        steps = self._steps.values()
        return list(dict.fromkeys(item for step in steps for item in step.swap.parameters))

    def _cast_gradients(self, dtype: torch.dtype | None) -> None:
        cast_gradients(self.masters.half_parameters, dtype, self._unscaled)


def _nothing() -> None:
    return None
