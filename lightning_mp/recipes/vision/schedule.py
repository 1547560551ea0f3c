"""Learning-rate schedule that stays right when the batch size changes during training."""

import math

__all__ = ["warmup_cosine"]


def warmup_cosine(step: int, epoch: int, *, warmup_steps: int, num_epochs: int) -> float:
    """Return the factor on the base learning rate: linear warm-up by step, cosine by epoch.

    The warm-up is over after a fixed number of steps and the cosine falls once per epoch, so the
    total number of steps, which a batch-size schedule changes, is never needed.

    Args:
        step: Number of optimizer steps done, from 0; skipped steps do not count.
        epoch: Number of whole epochs done, from 0.
        warmup_steps: Length of the warm-up in steps; 0 for none.
        num_epochs: Length of the run in epochs; -1 (unlimited) never lowers the rate.

    Returns:
        Factor above 0, up to 1.

    Example:
        >>> warmup_cosine(4, 0, warmup_steps=10, num_epochs=20)
        0.5
        >>> round(warmup_cosine(900, 10, warmup_steps=10, num_epochs=20), 3)
        0.5
    """
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    if num_epochs < 1:
        return warmup
    # The last step of a run asks for the factor of a step that never comes.
    progress = min(epoch, num_epochs - 1) / num_epochs
    return warmup * 0.5 * (1.0 + math.cos(math.pi * progress))
