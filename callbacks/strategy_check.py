"""Refuse strategies under which a process does not hold whole gradients."""

from lightning_mp.lightning_api import (
    DDPStrategy,
    DeepSpeedStrategy,
    SingleDeviceStrategy,
    Trainer,
)

__all__ = ["require_whole_gradients"]


def require_whole_gradients(trainer: Trainer, asked_by: str) -> None:
    """Check that every process has the whole gradients of the model.

    Args:
        trainer: The Trainer.
        asked_by: Name of the caller, for the message.

    Raises:
        TypeError: The strategy may shard gradients.
    """
    strategy = trainer.strategy
    is_whole = isinstance(strategy, (SingleDeviceStrategy, DDPStrategy))
    if not is_whole or isinstance(strategy, DeepSpeedStrategy):
        raise TypeError(
            f"strategy = {type(strategy).__name__} with {asked_by}; allowed are one device and "
            "DDP, where each process has whole gradients; use strategy='auto' or 'ddp', or remove "
            "the callback"
        )
