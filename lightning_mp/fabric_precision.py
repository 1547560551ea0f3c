"""The precision plugin of Fabric for the opt levels O0 to O3."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.amp.closure_step import ClosureStep
from lightning_mp.amp.optimizer_step import OptimizerStep
from lightning_mp.amp.tree import cast_floating
from lightning_mp.engine_plugin import EnginePlugin, bare_optimizer
from lightning_mp.kernels.group_steps import CHOOSES_STATE_DTYPE
from lightning_mp.lightning_api import FabricPrecision

__all__ = ["AmpFabricPrecision"]


class AmpFabricPrecision(EnginePlugin, FabricPrecision):
    """Run Fabric at an opt level, with FP32 master weights at O2.

    ``Fabric(precision="O2")`` is the short form; ``fabric.strategy.precision`` is the plugin then.
    Models and optimizers may be set up together or apart, in any number. Clip with
    ``fabric.clip_gradients``, which sees unscaled FP32 gradients; at a dynamic loss scale pass
    ``error_if_nonfinite=False`` to it, since a step that overflows is skipped anyway. Whoever reads
    gradients by himself calls ``unscale_gradients(optimizer)`` first.

    Fabric runs ``forward`` at the level. Other methods, those of ``mark_forward_method`` too, run
    so where Fabric wraps the model (DDP, compile); on one device put them into
    ``fabric.autocast()``. :meth:`teardown` gives FP32 models back, for another Fabric or a Trainer.

    Models and optimizers save FP32 contents. The loss scale is the plugin's: put it into the
    state, as ``fabric.save(path, {"model": model, "optimizer": optimizer, "precision": plugin})``,
    and load it in the same way.

    Args: those of :class:`~lightning_mp.precision.AmpPrecision`, but for ``cast_inputs`` and
    ``skip_scheduler_on_overflow``.

    Raises:
        ValueError: An argument is out of its range, or two contradict each other.

    Example:
        >>> from lightning.fabric import Fabric
        >>> plugin = AmpFabricPrecision(opt_level="O2", half_dtype="bf16")
        >>> fabric = Fabric(accelerator="cpu", plugins=[plugin])
        >>> model = nn.Linear(7, 3)
        >>> model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
        >>> fabric.backward(model(torch.randn(5, 7)).square().mean())
        >>> optimizer.step()
        >>> model.weight.dtype, plugin.skipped_steps
        (torch.bfloat16, 0)
    """

    _num_steps = 0
    _wrapped: "weakref.WeakSet[DistributedDataParallel] | None" = None

    @override
    def convert_module(self, module: nn.Module) -> nn.Module:
        if not self.engine.is_converted:
            self.agree(_broadcast)
        self.engine.convert(module)
        return module

    def watch(self, module: nn.Module) -> None:
        """Note a model as Fabric has wrapped it, to know when it exchanges gradients.

        ``import lightning_mp`` makes Fabric call it.

        Args:
            module: The wrapped model.
        """
        inner = getattr(module, "_orig_mod", module)
        if isinstance(inner, DistributedDataParallel):
            self._wrapped = self._wrapped or weakref.WeakSet()
            self._wrapped.add(inner)

    def attach(self, optimizer: Optimizer) -> None:
        """Take over an optimizer of the models that were set up.

        ``import lightning_mp`` makes Fabric call it. Where ``LIGHTNING_MP_NO_PATCH`` forbids that,
        the first step does; call it yourself to load an optimizer's state before.

        Args:
            optimizer: A torch optimizer.

        Raises:
            RuntimeError: No model was set up yet, or the optimizer's state was loaded in half.
            TypeError: It is no torch optimizer.
            ValueError: It evaluates a closure several times, and the loss scale moves.
        """
        self.check_optimizer(optimizer)
        if not self.engine.is_converted:
            raise RuntimeError(
                f"{type(optimizer).__name__} was set up before its model; an opt level needs the "
                "model first. Call fabric.setup_module(model) before "
                "fabric.setup_optimizers(optimizer), or fabric.setup(model, optimizer)."
            )
        if optimizer not in self.engine.steps:
            self._refuse_half_state(optimizer)
            self.engine.attach([optimizer])

    @override
    def convert_output(self, data: Any) -> Any:
        return cast_floating(data, torch.float32)

    @override
    def forward_context(self) -> AbstractContextManager[Any]:
        return self.engine.forward_context()

    @override
    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        scaled = self.engine.scale_loss(
            tensor, loss_id=self._loss_id, is_synchronising=self._is_synchronising()
        )
        # Activation checkpointing runs parts of the forward again, in here.
        with self.engine.forward_context(), self.engine.ending_backward():
            super().backward(scaled, model, *args, **kwargs)

    @override
    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Give the weights of an optimizer unscaled FP32 gradients; once per step.

        Args:
            optimizer: One that was set up, bare or as Fabric returned it.
        """
        self._step_of(bare_optimizer(optimizer)).unscale()

    @override
    def main_params(self, optimizer: Optimizer) -> Iterator[Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.master_params(optimizer)

    @override
    def optimizer_step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **kwargs: Any
    ) -> Any:
        step = self._step_of(optimizer)
        if closure is not None and self.hands_closure_on(optimizer):
            result = ClosureStep(step, self.engine.masters).run(closure, _nothing, **kwargs)
        else:
            result = None if closure is None else closure()
            step.step(_nothing, is_looked=False, **kwargs)
        self.engine.after_step(optimizer, num_steps=self._num_steps)
        self._num_steps += 1
        return result

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "num_steps": self._num_steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        num_steps = state.pop("num_steps", 0)
        super().load_state_dict(state)
        self._num_steps = num_steps
        self.agree(_broadcast)

    @override
    def teardown(self) -> None:
        self.engine.overflows(wait=True)
        self.engine.restore()

    def _step_of(self, optimizer: Optimizer) -> OptimizerStep:
        self.attach(optimizer)
        return self.engine.step_of(optimizer)

    def _is_synchronising(self) -> bool:
        if self._wrapped is None:
            # Nobody told of wrapped models; to round too early is the safe side.
            return _is_distributed()
        for model in self._wrapped:
            self._require_exchange(model)
        return any(model.require_backward_grad_sync for model in self._wrapped)

    def _refuse_half_state(self, optimizer: Optimizer) -> None:
        masters, half_dtype = self.engine.masters, self.engine.properties.half_dtype
        if getattr(optimizer, CHOOSES_STATE_DTYPE, False):
            return
        for parameter, state in optimizer.state.items():
            has_master = masters.of(parameter) is not parameter
            dtypes = {item.dtype for item in state.values() if isinstance(item, Tensor)}
            # Some (Adagrad) make theirs at once; in a loaded state there are steps, or no count.
            is_used = float(state.get("step", 1)) > 0
            if has_master and is_used and half_dtype in dtypes:
                raise RuntimeError(
                    f"the state of {type(optimizer).__name__} is in {half_dtype}: it was loaded "
                    "before the precision plugin knew the optimizer, and rounded. Unset "
                    "LIGHTNING_MP_NO_PATCH, or call fabric.strategy.precision.attach(optimizer) "
                    "before the state is loaded."
                )


def _broadcast(value: Any) -> Any:
    if not _is_distributed():
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, 0)
    return values[0]


def _is_distributed() -> bool:
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _nothing() -> None:
    return None
