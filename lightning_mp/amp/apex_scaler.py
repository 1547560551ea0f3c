"""A loss scaler under the names of Apex."""

from lightning_mp.amp.loss_scaler import LossScaler

__all__ = ["ApexScaler"]


class ApexScaler:
    """Show a :class:`~lightning_mp.amp.loss_scaler.LossScaler` as existing code expects it.

    Args:
        scaler: The scaler. It keeps its state on the device; reading it here waits for that.
    """

    def __init__(self, scaler: LossScaler) -> None:
        self.scaler = scaler

    def loss_scale(self) -> float:
        """Return the scale of the next backward."""
        return self._loss_scale

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return self.scaler.is_dynamic

    @property
    def _loss_scale(self) -> float:
        return float(self.scaler.next_scale.item())

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self.load(value, self._unskipped)

    @property
    def _unskipped(self) -> int:
        return int(self.scaler.state_dict()["growth_tracker"])

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self.load(self._loss_scale, value)

    def load(self, loss_scale: float, unskipped: int) -> None:
        """Set the state of a dynamic scaler; a static scale stays what it is.

        Args:
            loss_scale: The scale, brought between floor and cap.
            unskipped: Number of good updates in a row.

        Raises:
            ValueError: If a value is impossible; nothing is changed then.
        """
        present = self.scaler.state_dict()
        self.scaler.load_state_dict(
            {
                **present,
                "loss_scale": float(loss_scale),
                "growth_tracker": unskipped,
                "is_dynamic": True,
            }
        )
