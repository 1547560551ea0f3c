"""Several losses with a scaler each, whose gradients meet in the same optimizers.

After each backward the gradients are unscaled with the scale of its loss, so that a step never has
to know where they came from.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.optimizer_step import OptimizerStep
from lightning_mp.amp.scaled_backward import ScaledBackward
from lightning_mp.amp.shared_gradients import SharedGradients
from lightning_mp.amp.unscaled_gradients import UnscaledGradients

__all__ = ["SeparateLosses"]


class SeparateLosses:
    """Run backwards under one of several loss scalers.

    Args:
        scalers: The scaler of each loss.

    Attributes:
        step_scaler: Stands in for a loss scaler in optimizer steps, which get unscaled gradients;
            it counts the skipped ones.
    """

    def __init__(self, scalers: Sequence[LossScaler]) -> None:
        self.step_scaler = LossScaler(1.0)
        self._scalers = tuple(scalers)
        self._window: ScaledBackward | None = None
        self._loss_id = 0
        # Of the last backward that gave an optimizer gradients: its scale, and the next one.
        self._scales: dict[Optimizer, tuple[Tensor, Tensor]] = {}

    def open(
        self,
        loss: Tensor,
        loss_id: int,
        parameters: Iterable[Tensor],
        masters: MasterWeights,
        names: Mapping[Tensor, str],
    ) -> Tensor:
        """Begin the backward of a loss.

        Args:
            loss: Scalar loss.
            loss_id: Index of its scaler.
            parameters: All model parameters that optimizers step.
            masters: Masters of the model.
            names: Qualified name of each model parameter.

        Returns:
            The scaled loss.
        """
        self.abandon()
        self._loss_id = loss_id
        scaler = self._scalers[loss_id]
        scaler.to(loss.device)
        gradients = SharedGradients(masters, UnscaledGradients(), is_shared=False)
        self._window = ScaledBackward(list(parameters), gradients, scaler, names=names)
        return self._window.begin(loss)

    def close(self, steps: Mapping[Optimizer, OptimizerStep], unscaled: UnscaledGradients) -> None:
        """End the backward: unscale its gradients, add the earlier ones, move the scale.

        Args:
            steps: Step engine of each optimizer.
            unscaled: Where unscaled gradients are noted.
        """
        window, self._window = self._window, None
        if window is None:
            return
        scaler = self._scalers[self._loss_id]
        reached = [
            optimizer
            for optimizer, step in steps.items()
            if any(parameter.grad is not None for parameter in step.swap.parameters)
        ]
        check = window.close()
        for step in steps.values():
            for parameter in step.swap.parameters:
                unscaled.add(parameter)
        if check is None or not check.has_gradients:
            return
        scaler.record(check.found_inf)
        scale = scaler.scale
        scaler.update()
        for optimizer in reached:
            self._scales[optimizer] = (scale, scaler.scale)

    def abandon(self) -> None:
        """Give up a backward that has failed; earlier gradients are as they were."""
        window, self._window = self._window, None
        if window is not None:
            window.abandon()

    def scales_of(self, optimizer: Optimizer) -> tuple[Tensor, Tensor]:
        """Return the scale of an optimizer's last gradients, and the scale that followed it.

        Args:
            optimizer: The optimizer.
        """
        first = self._scalers[0].scale
        return self._scales.get(optimizer, (first, first))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all scalers, as plain values."""
        return {
            "losses": [scaler.state_dict() for scaler in self._scalers],
            "steps": self.step_scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scalers; the state of a single one counts for all.

        Args:
            state: What :meth:`state_dict`, or one scaler, returned.

        Raises:
            ValueError: The state is impossible, or of another number of losses; nothing is changed
                then.
        """
        states = state.get("losses", [state] * len(self._scalers))
        if len(states) != len(self._scalers):
            raise ValueError(
                f"the checkpoint has loss scales of {len(states)} losses and num_losses = "
                f"{len(self._scalers)}; the same number is allowed; set num_losses={len(states)}"
            )
        for saved in states:
            # Refuses what is impossible before anything is changed.
            LossScaler().load_state_dict(saved)
        for scaler, saved in zip(self._scalers, states, strict=True):
            scaler.load_state_dict(saved)
        self.step_scaler.load_state_dict(state.get("steps", state))
