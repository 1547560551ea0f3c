"""Find out who may read or write gradients between the backward and the optimizer step."""

from typing import Any

from lightning_mp.lightning_api import Callback, LightningModule, is_overridden

__all__ = ["gradient_readers"]

_HOOKS = ("on_before_optimizer_step", "on_before_zero_grad")
_CLIPPING = ("configure_gradient_clipping", "clip_gradients")


def gradient_readers(model: LightningModule) -> list[str]:
    """Name the objects of a run that may look at gradients before they are used.

    A callback that overrides one of the hooks without looking at gradients says so by a class
    attribute ``reads_gradients = False``.

    Args:
        model: A module attached to a Trainer.

    Returns:
        Class names of the module and of callbacks; empty if FP32 gradients need not exist.
    """
    is_reader = any(is_overridden(name, model) for name in _HOOKS + _CLIPPING)
    readers = [type(model).__name__] if is_reader else []
    trainer: Any = model.trainer
    for callback in trainer.callbacks:
        is_reader = any(is_overridden(name, callback, Callback) for name in _HOOKS)
        if is_reader and getattr(callback, "reads_gradients", True):
            readers.append(type(callback).__name__)
    return readers
