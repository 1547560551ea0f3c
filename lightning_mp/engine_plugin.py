"""What the precision plugins of the Trainer and of Fabric share: an engine and its state."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightning_mp.amp.apex_arguments import parse_num_losses
from lightning_mp.amp.closure_step import evaluates_closure, needs_closure
from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.opt_levels import HALF_NAMES, OptLevelProperties, resolve_opt_level
from lightning_mp.amp.overflow import OverflowRecord
from lightning_mp.lightning_api import LightningOptimizer, fabric_wrappers, rank_zero_warn
from lightning_mp.trainer_check import other_package_note

__all__ = ["EnginePlugin", "bare_optimizer", "require_switch"]

_SCALER_DEFAULTS: Mapping[str, float] = {
    "init_scale": 2.0**16,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "hysteresis": 1,
}


class EnginePlugin:
    """Own the engine of one Trainer or Fabric.

    Args: see :class:`~lightning_mp.precision.AmpPrecision`.

    Attributes:
        engine: The engine.
        half_dtype: ``"fp16"`` or ``"bf16"``.
        precision: The precision string, such as ``"O2-bf16"``.
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
    ) -> None:
        require_switch("allow_banned", allow_banned)
        require_switch("fused", fused)
        if half_dtype not in HALF_NAMES:
            raise ValueError(
                f"half_dtype = {half_dtype!r}; allowed are {', '.join(map(repr, HALF_NAMES))}. "
                "Choose 'bf16' for range, 'fp16' for precision with loss scaling."
            )
        properties = resolve_opt_level(
            opt_level,
            half_dtype=HALF_NAMES[half_dtype],
            keep_batchnorm_fp32=keep_batchnorm_fp32,
            keep_norms_fp32=keep_norms_fp32,
            master_weights=master_weights,
            loss_scale=loss_scale,
        )
        movement: dict[str, Any] = {
            "init_scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
            "hysteresis": hysteresis,
        }
        arguments: dict[str, Any] = movement | {
            "min_loss_scale": min_loss_scale,
            "max_loss_scale": max_loss_scale,
        }
        scalers = [
            LossScaler(properties.loss_scale, **arguments)
            for _ in range(parse_num_losses(num_losses))
        ]
        if not properties.is_dynamic:
            self._warn_of_idle(movement)
        self.engine = AmpEngine(properties, scalers, allow_banned=allow_banned, fused=fused)
        self.half_dtype = half_dtype
        is_bf16 = _half_dtype_of(properties) == torch.bfloat16
        self.precision: Any = properties.opt_level + ("-bf16" if is_bf16 else "")
        self._scaler_arguments = {**arguments, "num_losses": num_losses, "fused": fused}
        self._loss_id = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(opt_level={self.opt_level!r}){other_package_note()}"

    @property
    def opt_level(self) -> str:
        """The opt level, such as ``"O2"``."""
        return self.engine.properties.opt_level

    @property
    def loss_scale(self) -> float:
        """The loss scale of the next backward; reading it waits for the device.

        That of loss 0, if there are several; see :attr:`loss_scales`.
        """
        return self.engine.loss_scale

    @property
    def loss_scales(self) -> tuple[float, ...]:
        """The loss scale of the next backward of each loss; reading it waits for the device."""
        return tuple(float(scaler.next_scale.item()) for scaler in self.engine.scalers)

    @property
    def found_inf(self) -> Tensor:
        """Float32 scalar on the device: 1 if the last optimizer step met a non-finite gradient."""
        return self.engine.found_inf

    @property
    def skipped_steps(self) -> int:
        """Number of optimizer steps skipped so far; reading it waits for the device."""
        return self.engine.skipped_steps

    @contextmanager
    def loss(self, loss_id: int) -> Iterator[None]:
        """Name the loss whose backward runs in this region, and so its scaler.

        In a LightningModule that optimises manually::

            with self.trainer.precision_plugin.loss(1):
                self.manual_backward(discriminator_loss)

        It may stay where nothing is scaled (O0, bf16). A backward outside belongs to loss 0.

        Args:
            loss_id: Index of the loss, below ``num_losses``.

        Raises:
            IndexError: There is no such loss.
            TypeError: It is not an int.
        """
        last = len(self.engine.scalers) - 1
        if isinstance(loss_id, bool) or not isinstance(loss_id, int):
            raise TypeError(
                f"loss_id = {loss_id!r}; allowed: an int from 0 to {last}; count the losses from 0"
            )
        if not 0 <= loss_id <= last:
            more = f"set {type(self).__name__}(num_losses={loss_id + 1}) for more"
            raise IndexError(
                f"loss_id = {loss_id}; allowed: 0 to {last}; "
                f"{more if loss_id > last else 'count the losses from 0'}"
            )
        before, self._loss_id = self._loss_id, loss_id
        try:
            yield
        finally:
            self._loss_id = before

    def overflows(self, *, wait: bool = False) -> list[OverflowRecord]:
        """Return the overflows since the last call.

        Args:
            wait: Wait for the device to tell of the latest steps too; without it nothing waits.
        """
        return self.engine.overflows(wait=wait)

    def gradient_norm(self, optimizer: Any) -> Tensor | None:
        """Return the L2 norm of the unscaled gradients of an optimizer's last step.

        The step has computed it before it clipped; nothing is read from the device. A step whose
        gradients somebody could look at computes none: an extra pass would be needed, and whoever
        looks can measure them himself.

        Args:
            optimizer: An optimizer of the model, bare or in Lightning's wrapper.

        Returns:
            A float32 scalar on the device; ``None`` if there was no step with gradients yet, and
            if the last one had its gradients unscaled before its update (:meth:`is_unscaled`).
        """
        return self.engine.step_of(bare_optimizer(optimizer)).gradient_norm

    def is_unscaled(self, optimizer: Any) -> bool:
        """Return whether the gradients of a step in preparation are there, unscaled and in FP32.

        Args:
            optimizer: An optimizer of the model, bare or in Lightning's wrapper.
        """
        return self.engine.step_of(bare_optimizer(optimizer)).is_unscaled

    def master_params(self, optimizer: Any) -> Iterator[Tensor]:
        """Yield what an optimizer really updates: FP32 masters, or parameters without one.

        Args:
            optimizer: An optimizer of the model, bare or in Lightning's wrapper.
        """
        for group in bare_optimizer(optimizer).param_groups:
            for item in group["params"]:
                yield self.engine.masters.of(item) if self.engine.is_converted else item

    def adopt(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Take over half weights that were written from outside, to the last bit.

        With ordinary masters the next step finds such writes by itself. Split masters cannot tell;
        without this call a written value is off by less than its last bit.

        Args:
            parameters: The model's parameters that were written; all by default.

        Raises:
            RuntimeError: No model is converted at present.
        """
        masters = self.engine.masters
        masters.adopt_all(masters.half_parameters if parameters is None else parameters)

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scaler's state and the properties, as plain values."""
        return {**self._scaler_state(), "resolved": self._resolved()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the loss scale of a checkpoint; the arguments of this run stay in force.

        Args:
            state_dict: What :meth:`state_dict` returned.

        Raises:
            ValueError: The state is impossible; nothing is changed then.
        """
        state = dict(state_dict)
        saved, present = state.pop("resolved", None), self._resolved()
        self.engine.load_scaler_state(state)
        changes = [
            f"{name}: {saved.get(name)} -> {value}"
            for name, value in present.items()
            if saved is not None and saved.get(name) != value
        ]
        if changes:
            rank_zero_warn(
                f"the checkpoint was made with other precision properties ({', '.join(changes)}); "
                "training goes on with those of this run. Set the same precision to continue "
                "exactly."
            )

    def agree(self, broadcast: Callable[[Any], Any]) -> None:
        """Bring all ranks to the loss scale of rank 0.

        Args:
            broadcast: Returns what rank 0 gave to it; every rank calls it.

        Raises:
            RuntimeError: The arguments of a rank are not those of rank 0.
        """
        own = {**self._resolved(), **self._scaler_arguments}
        agreed, state = broadcast((own, self._scaler_state()))
        different = [
            f"{name} = {value!r}, rank 0 {agreed.get(name)!r}"
            for name, value in own.items()
            if agreed.get(name) != value
        ]
        if different:
            raise RuntimeError(
                f"a rank was given {'; '.join(different)}; all ranks must train at the same "
                "precision. Give every rank the same arguments."
            )
        if state != self._scaler_state():
            self.engine.load_scaler_state(state)

    def check_optimizer(self, optimizer: Any) -> None:
        """Refuse an optimizer that an opt level cannot step.

        Args:
            optimizer: What the user calls an optimizer.

        Raises:
            TypeError: It is none of torch's.
            ValueError: It evaluates a closure several times, and the loss scale moves.
        """
        name = type(optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"configure_optimizers returned {name}; an opt level steps subclasses of "
                "torch.optim.Optimizer only. Use precision='32-true' with this object."
            )
        is_lbfgs = isinstance(optimizer, torch.optim.LBFGS)
        if self.engine.properties.is_dynamic and (is_lbfgs or needs_closure(optimizer)):
            raise ValueError(
                f"{name} evaluates its closure several times in a step, which loss_scale = "
                f"'dynamic' cannot follow. Give a fixed scale, for example "
                f"{type(self).__name__}(loss_scale=1.0), or half_dtype='bf16'."
            )

    def hands_closure_on(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimizer gets its closure, to evaluate it as often as it likes.

        Args:
            optimizer: The optimizer.
        """
        return not self.engine.properties.is_dynamic and evaluates_closure(optimizer)

    def _require_exchange(self, model: DistributedDataParallel) -> None:
        """Refuse a backward without an exchange of gradients where each loss has a scale.

        Overflows that only one process sees would drive the scales of the processes apart.
        """
        num_losses = len(self.engine.scalers)
        if num_losses > 1 and not model.require_backward_grad_sync:
            raise ValueError(
                f"num_losses = {num_losses} and a backward without an exchange of gradients; "
                "allowed between processes: backwards that exchange them; accumulate without "
                "no_sync and accumulate_grad_batches, or leave num_losses out"
            )

    def _scaler_state(self) -> dict[str, Any]:
        return self.engine.scaler_state()

    def _resolved(self) -> dict[str, Any]:
        return self.engine.properties.describe()

    def _warn_of_idle(self, movement: Mapping[str, float]) -> None:
        idle = [name for name, value in movement.items() if value != _SCALER_DEFAULTS[name]]
        if idle:
            rank_zero_warn(
                f"{', '.join(idle)} of {type(self).__name__} have no effect: the loss scale is "
                "static. Set loss_scale='dynamic' to use them, or leave them out."
            )


def require_switch(name: str, value: Any) -> None:
    """Refuse what is neither True nor False, such as ``"no"``, which would count as True.

    Args:
        name: Name of the argument.
        value: What was given.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(value, bool):
        raise ValueError(
            f"{name} = {value!r}; allowed are True and False; pass one of them, or leave it out"
        )


def bare_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimizer in one of Lightning's wrappers, or the optimizer itself.

    Args:
        optimizer: An optimizer, bare or wrapped by the Trainer or by Fabric.
    """
    is_wrapped = isinstance(optimizer, LightningOptimizer | fabric_wrappers._FabricOptimizer)
    return optimizer.optimizer if is_wrapped else optimizer


def _half_dtype_of(properties: OptLevelProperties) -> torch.dtype | None:
    return properties.half_dtype or properties.function_dtype
