"""How learning rate and betas follow the batch size, for any training loop.

Linear for SGD: Goyal et al., "Accurate, Large Minibatch SGD", 2017. Square root for Adam and its
kind, with betas and eps: Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
Algorithms", 2022.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch.optim import Optimizer

__all__ = ["Rule", "check_betas", "learning_rate_factor", "resolve_rule", "scaled_step"]

Rule = Literal["none", "linear", "sqrt"]

_LINEAR = {"SGD", "ASGD", "LARS", "LARC"}
_SQRT = {
    "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "Adagrad", "Adadelta", "RMSprop",
    "Adafactor", "LAMB", "NovoGrad", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad",
}  # fmt: skip


def resolve_rule(optimizer: Optimizer, rule: Literal["auto", "none", "linear", "sqrt"]) -> Rule:
    """Choose the rule of an optimizer: linear for SGD, square root for Adam and its kind.

    Args:
        optimizer: Any torch optimizer; subclasses count as what they derive from.
        rule: ``"auto"``, or the rule itself.

    Returns:
        The rule.

    Raises:
        ValueError: ``"auto"`` was asked for and the optimizer is of neither kind.
    """
    if rule != "auto":
        return rule
    for cls in type(optimizer).__mro__:
        if cls.__name__ in _LINEAR:
            return "linear"
        if cls.__name__ in _SQRT:
            return "sqrt"
    raise ValueError(
        f"rule = 'auto' with {type(optimizer).__name__}; it is known for SGD (linear) and for Adam "
        "and its kind (sqrt); pass rule='linear' or 'sqrt'"
    )


def learning_rate_factor(batch_ratio: float, rule: Rule) -> float:
    """Return the factor of the learning rate at a batch size.

    Args:
        batch_ratio: Batch size over the one that the learning rate was tuned for, above 0.
        rule: The rule.

    Example:
        >>> learning_rate_factor(4.0, "linear"), learning_rate_factor(4.0, "sqrt")
        (4.0, 2.0)
    """
    if rule == "none":
        return 1.0
    return batch_ratio if rule == "linear" else math.sqrt(batch_ratio)


def check_betas(optimizer: Optimizer, batch_ratio: float) -> None:
    """Check that the betas of an optimizer can be scaled to a batch size.

    Args:
        optimizer: Any torch optimizer.
        batch_ratio: Largest batch size over the one that they were tuned for.

    Raises:
        ValueError: A parameter group has no betas, or one would not stay above 0.
    """
    for group in optimizer.param_groups:
        if "betas" not in group:
            raise ValueError(
                f"scale_betas = True with {type(optimizer).__name__}, which has no betas; allowed "
                "with Adam and its kind; leave it out"
            )
        for beta in group["betas"]:
            # A beta of 0 keeps no memory whatever the batch.
            if beta > 0 and 1 - batch_ratio * (1 - beta) < 0:
                raise ValueError(
                    f"scale_betas = True at {batch_ratio:g} times the base batch size; beta = "
                    f"{float(beta):g} allows at most {1 / (1 - beta):g} times; leave it out, or "
                    "raise the base batch size"
                )


@contextmanager
def scaled_step(
    optimizer: Optimizer, factor: float, *, beta_ratio: float | None = None
) -> Iterator[None]:
    """Scale an optimizer's learning rate while it steps, and give the unscaled one back.

    Learning-rate schedulers and checkpoints then never see the scaled rate. What somebody writes
    to a parameter group inside the region stays.

    Args:
        optimizer: Any torch optimizer.
        factor: Factor of the learning rate, 0 or more.
        beta_ratio: Batch size over the one that the betas and eps were tuned for; ``None`` leaves
            them. Becomes ``1 - ratio * (1 - beta)`` and ``eps / sqrt(ratio)``.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
        >>> with scaled_step(optimizer, 4.0):
        ...     optimizer.param_groups[0]["lr"]
        2.0
        >>> optimizer.param_groups[0]["lr"]
        0.5
    """
    undo: list[tuple[dict[str, Any], str, Any, Any]] = []
    for group in optimizer.param_groups:
        for name, value in _scaled_values(group, factor, beta_ratio).items():
            undo.append((group, name, group[name], value))
            group[name] = value
    try:
        yield
    finally:
        for group, name, before, scaled in undo:
            if group[name] is scaled:
                group[name] = before


def _scaled_values(
    group: dict[str, Any], factor: float, beta_ratio: float | None
) -> dict[str, Any]:
    # The product is a new object, so that identity tells whether somebody else has written.
    scaled: dict[str, Any] = {} if factor == 1 else {"lr": group["lr"] * factor}
    if beta_ratio is not None and beta_ratio != 1:
        scaled["betas"] = tuple(
            beta if beta == 0 else 1 - beta_ratio * (1 - beta) for beta in group["betas"]
        )
        scaled["eps"] = group["eps"] / math.sqrt(beta_ratio)
    return scaled
