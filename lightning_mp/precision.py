"""The precision plugin of the Trainer for the opt levels O0 to O3."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.amp.closure_step import ClosureStep
from lightning_mp.amp.gradient_clip import ClipRule
from lightning_mp.amp.raised_outputs import RaisedOutputs
from lightning_mp.amp.summary import format_table, summary_rows
from lightning_mp.amp.tree import cast_floating
from lightning_mp.engine_plugin import EnginePlugin, bare_optimizer, require_switch
from lightning_mp.gradient_readers import gradient_readers
from lightning_mp.kernels.capability import describe_kernels
from lightning_mp.lightning_api import (
    GradClipAlgorithmType,
    LightningModule,
    LightningOptimizer,
    Precision,
    do_nothing_closure,
    rank_zero_info,
    rank_zero_warn,
)

__all__ = ["AmpPrecision"]


class AmpPrecision(EnginePlugin, Precision):
    """Run a Trainer at an opt level, with FP32 master weights at O2.

    ``Trainer(precision="O2")`` is the short form. Optimizers keep holding the model's own
    parameters; the masters stand in only while gradients are clipped, while the optimizer steps and
    while it is saved. A checkpoint is an ordinary FP32 one.

    On resume the dynamic loss scale, its growth tracker and the number of skipped steps are those
    of the checkpoint. Everything else is what this run was given: the level, the half dtype, a
    fixed loss scale, the growth interval. Where properties differ from the checkpoint's, one
    warning says so; a scale that was fixed there and is dynamic here starts at ``init_scale``. All
    ranks must be given the same arguments, and take the loss scale of rank 0.

    Args:
        opt_level: ``"O0"``, ``"O1"``, ``"O2"`` or ``"O3"`` (letter O).
        half_dtype: Half dtype of O1, O2 and O3. fp16 scales the loss dynamically by default at O1
            and O2, bf16 does not scale it.
        keep_batchnorm_fp32: Whether batch norms stay FP32; ``None`` for the level's own choice.
        keep_norms_fp32: Whether all norm layers stay FP32; ``None`` for the level's own choice.
        master_weights: Whether FP32 masters are kept; ``None`` for the level's own choice;
            ``"split"`` (bf16 only) keeps them as weights and 16-bit remainders, exactly, in 2 bytes
            less per parameter. Who then writes weights from outside calls :meth:`adopt`.
        loss_scale: ``"dynamic"``, a fixed scale above 0, or ``None`` for the level's own.
        cast_inputs: Whether all floating tensors of a batch become half before they reach the
            device, as under ``"bf16-true"``. By default a batch stays as it is, targets and all,
            and what enters ``self(...)`` or a half layer is cast there, as Apex did.
        init_scale: First scale of the dynamic mode.
        growth_factor: Factor the scale grows by, above 1.
        backoff_factor: Factor the scale shrinks by after an overflow, between 0 and 1.
        growth_interval: Number of good steps in a row before the scale grows.
        min_loss_scale: Floor of the dynamic scale, above 0.
        max_loss_scale: Cap of the dynamic scale.
        hysteresis: Number of overflows before the scale shrinks.
        num_losses: Number of losses with a loss scale each; a backward inside :meth:`loss` belongs
            to the one that it names, any other to loss 0.
        allow_banned: Whether functions that O1 refuses in half, such as ``binary_cross_entropy``,
            run in float32 instead.
        fused: Whether Adam, AdamW and SGD of torch, which step on FP32 masters at O2, are stepped
            in one pass over memory, exactly as they would; ``False`` calls their own ``step``.
        skip_scheduler_on_overflow: Whether a learning-rate scheduler holds while its optimizer
            skips.

    Raises:
        ValueError: An argument is out of its range, or two contradict each other.

    Example:
        >>> import lightning as L
        >>> plugin = AmpPrecision(opt_level="O2", half_dtype="bf16", loss_scale=128.0)
        >>> trainer = L.Trainer(accelerator="cpu", plugins=[plugin], logger=False)
        >>> plugin.loss_scale
        128.0
    """

    def __init__(
        self,
        opt_level: Literal["O0", "O1", "O2", "O3"] = "O2",
        half_dtype: Literal["fp16", "bf16"] = "fp16",
        *,
        keep_batchnorm_fp32: bool | None = None,
        keep_norms_fp32: bool | None = None,
        master_weights: bool | Literal["split"] | None = None,
        loss_scale: float | Literal["dynamic"] | None = None,
        cast_inputs: bool = False,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_loss_scale: float = 2.0**-10,
        max_loss_scale: float = 2.0**24,
        hysteresis: int = 1,
        num_losses: int = 1,
        allow_banned: bool = False,
        fused: bool = True,
        skip_scheduler_on_overflow: bool = True,
    ) -> None:
        super().__init__(
            opt_level,
            half_dtype,
            keep_batchnorm_fp32=keep_batchnorm_fp32,
            keep_norms_fp32=keep_norms_fp32,
            master_weights=master_weights,
            loss_scale=loss_scale,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            min_loss_scale=min_loss_scale,
            max_loss_scale=max_loss_scale,
            hysteresis=hysteresis,
            num_losses=num_losses,
            allow_banned=allow_banned,
            fused=fused,
        )
        require_switch("cast_inputs", cast_inputs)
        require_switch("skip_scheduler_on_overflow", skip_scheduler_on_overflow)
        self._cast_inputs = cast_inputs
        self._skips_schedulers = skip_scheduler_on_overflow
        self._model: nn.Module | None = None
        self._outputs: RaisedOutputs | None = None
        # Optimizers without a step since the last backward of a scaled loss.
        self._awaiting_step: set[Optimizer] = set()

    @override
    def main_params(self, optimizer: Optimizer) -> Iterator[Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.master_params(optimizer)

    # ------------------------------------------------------------------------------ set-up and end

    @override
    def convert_module(self, module: nn.Module) -> nn.Module:
        # A Trainer trains one model at a time; whatever was converted before is given back.
        self._restore()
        self.engine.convert(module)
        if self.engine.properties.function_dtype is not None:
            # The casts of O1 last for a whole step; what comes out of self(...) is FP32 anyway.
            self._outputs = RaisedOutputs(module)
        return module

    @override
    def connect(
        self, model: nn.Module, optimizers: list[Optimizer], lr_schedulers: list[Any]
    ) -> tuple[nn.Module, list[Optimizer], list[Any]]:
        # A validation after a fit hands over the optimizers of that fit.
        attached = optimizers if _lightning_module(model).trainer.state.fn == "fit" else []
        for optimizer in attached:
            self.check_optimizer(optimizer)
        self._model = model
        self.engine.attach(attached)
        if self._skips_schedulers:
            for config in lr_schedulers:
                optimizer = getattr(config.scheduler, "optimizer", None)
                if isinstance(optimizer, Optimizer):
                    self.engine.guard_scheduler(config.scheduler, optimizer)
        if attached:
            self._agree()
            self._announce(_lightning_module(model))
        return model, optimizers, lr_schedulers

    @override
    def teardown(self) -> None:
        self.engine.overflows(wait=True)
        self._restore()
        self._model = None

    # ------------------------------------------------------------------------ forward and backward

    @override
    def convert_input(self, data: Any) -> Any:
        dtype = self.engine.properties.half_dtype
        return cast_floating(data, dtype) if self._cast_inputs and dtype is not None else data

    @override
    def convert_output(self, data: Any) -> Any:
        return cast_floating(data, torch.float32)

    @override
    def forward_context(self) -> AbstractContextManager[Any]:
        return self.engine.forward_context()

    @override
    def pre_backward(self, tensor: Tensor, module: LightningModule) -> Tensor:
        is_synchronising = False
        if isinstance(self._model, DistributedDataParallel):
            self._require_exchange(self._model)
            is_synchronising = self._model.require_backward_grad_sync
        scaled = self.engine.scale_loss(
            tensor, loss_id=self._loss_id, is_synchronising=is_synchronising
        )
        self._awaiting_step.update(self.engine.steps)
        return super().pre_backward(scaled, module)

    @override
    def backward(
        self, tensor: Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        # Activation checkpointing runs parts of the forward again, in here.
        with self.engine.forward_context(), self.engine.ending_backward():
            super().backward(tensor, model, optimizer, *args, **kwargs)

    # ---------------------------------------------------------------------------------------- step

    @override
    def clip_gradients(
        self,
        optimizer: Optimizer | LightningOptimizer,
        clip_val: int | float | None = 0.0,
        gradient_clip_algorithm: GradClipAlgorithmType | str = GradClipAlgorithmType.NORM,
    ) -> None:
        if clip_val is None or clip_val <= 0:
            return
        is_by_value = GradClipAlgorithmType(gradient_clip_algorithm) == GradClipAlgorithmType.VALUE
        limit = {"clip_value" if is_by_value else "max_norm": float(clip_val)}
        self.clip_by_rule(optimizer, ClipRule(**limit))

    def clip_by_rule(self, optimizer: Optimizer | LightningOptimizer, rule: ClipRule) -> None:
        """Clip the true FP32 gradients of an optimizer, now or inside its fused step.

        Args:
            optimizer: An optimizer of the fitted module.
            rule: What to clip by.
        """
        bare = bare_optimizer(optimizer)
        self._require_scaled(bare)
        self.engine.step_of(bare).clip(rule)

    @override
    def optimizer_step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        optimizer: Optimizer,
        model: LightningModule,
        closure: Callable[[], Any],
        **kwargs: Any,
    ) -> Any:
        step = self.engine.step_of(optimizer)
        num_steps = model.trainer.global_step
        hooks = partial(self._after_closure, model, optimizer)
        if closure is not do_nothing_closure and self.hands_closure_on(optimizer):
            result = ClosureStep(step, self.engine.masters).run(closure, hooks, **kwargs)
        else:
            # None if training_step skipped the batch; gradients of earlier micro-batches count.
            result = closure()
            self._require_scaled(optimizer)
            step.step(hooks, is_looked=bool(gradient_readers(model)), **kwargs)
        self.engine.after_step(optimizer, num_steps=num_steps)
        self._awaiting_step.discard(optimizer)
        return result

    # ---------------------------------------------------------------------------------- checkpoint

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._agree()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        stock = checkpoint.get("MixedPrecision")
        if stock and type(self).__qualname__ not in checkpoint:
            super().load_state_dict(stock)
            self._agree()

    # ------------------------------------------------------------------------------------- private

    def _restore(self) -> None:
        if self._outputs is not None:
            self._outputs.remove()
            self._outputs = None
        self._awaiting_step.clear()
        self.engine.restore()

    def _require_scaled(self, optimizer: Optimizer) -> None:
        """Refuse gradients that would be divided by a loss scale they do not have."""
        # Of several losses each backward leaves its gradients unscaled.
        is_scaled = len(self.engine.scalers) == 1 and not self.engine.scaler.is_identity
        if not is_scaled or optimizer in self._awaiting_step:
            return
        # In automatic optimisation Lightning calls the backward, but for a pass that wants none.
        if self._model is None or _lightning_module(self._model).automatic_optimization:
            return
        parameters = self.engine.step_of(optimizer).swap.parameters
        if any(parameter.grad is not None for parameter in parameters):
            raise RuntimeError(
                f"gradients of {type(optimizer).__name__} = not those of a scaled loss; allowed: "
                "one backward or more by self.manual_backward(loss) before each step. Call it in "
                "place of loss.backward()"
            )

    def _agree(self) -> None:
        if self._model is not None:
            self.agree(_lightning_module(self._model).trainer.strategy.broadcast)

    def _announce(self, module: LightningModule) -> None:
        kernels = ", ".join(dict.fromkeys(item.implementation for item in describe_kernels()))
        rows = summary_rows(module, self.engine, kernels=kernels, readers=gradient_readers(module))
        rank_zero_info("\n" + format_table("Mixed precision", rows))
        self._warn_of_rounded_averages(module)

    def _warn_of_rounded_averages(self, module: LightningModule) -> None:
        trainer: Any = module.trainer
        for callback in trainer.callbacks:
            # By name: Lightning has it from 2.6 on.
            is_averaging = any(cls.__name__ == "WeightAveraging" for cls in type(callback).__mro__)
            is_rounding = is_averaging and not getattr(callback, "averages_masters", False)
            if is_rounding and self.engine.properties.half_dtype is not None:
                rank_zero_warn(
                    f"{type(callback).__name__} averages the half weights at {self.opt_level}, not "
                    "their FP32 masters: small updates are rounded away in the average. Use "
                    "lightning_mp.callbacks.MasterWeightAveraging in its place."
                )


def _lightning_module(model: nn.Module) -> LightningModule:
    module = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(module, LightningModule)
    return module
