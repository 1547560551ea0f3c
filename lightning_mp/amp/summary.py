"""The start-up table: what an opt level was resolved to, in words."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from lightning_mp.amp.engine import AmpEngine

__all__ = ["bytes_per_parameter", "format_table", "summary_rows"]


def bytes_per_parameter(module: nn.Module, engine: AmpEngine) -> dict[str, float]:
    """Measure the memory that weights and masters take, averaged over the model's parameters.

    Args:
        module: The converted model.
        engine: The engine that converted it.

    Returns:
        Bytes per parameter element under ``"weights"`` and ``"masters"``.
    """
    parameters = list(module.parameters())
    num_elements = max(1, sum(parameter.numel() for parameter in parameters))
    weights = sum(item.numel() * item.element_size() for item in parameters)
    master_bytes = sum(map(engine.masters.num_bytes, parameters))
    return {"weights": weights / num_elements, "masters": master_bytes / num_elements}


def summary_rows(
    module: nn.Module, engine: AmpEngine, *, kernels: str, readers: Sequence[str]
) -> dict[str, str]:
    """Collect the rows of the start-up table.

    Args:
        module: The converted model.
        engine: The engine that converted it, with its optimizers attached.
        kernels: Which kernels run, in words.
        readers: Names of what reads gradients before a step; empty if nobody does.

    Returns:
        Label and text of each row, in order.
    """
    properties = engine.properties
    memory = bytes_per_parameter(module, engine)
    kept = "none"
    if properties.keep_norms_fp32:
        kept = "all norm layers"
    elif properties.keep_batchnorm_fp32:
        kept = "batch norms"
    half = properties.half_dtype
    return {
        "opt level": properties.opt_level,
        **_cast_rows(engine),
        "model dtype": "float32" if half is None else _name(half),
        "kept in float32": "everything" if half is None else kept,
        "master weights": _masters(engine),
        "loss scale": _loss_scale(engine),
        "kernels": kernels,
        "bytes per parameter": f"weights {memory['weights']:.1f} + masters {memory['masters']:.1f}",
        "FP32 gradients": _gradients(engine, readers),
    }


def format_table(title: str, rows: Mapping[str, str]) -> str:
    """Lay out rows as a two-column table.

    Args:
        title: First line.
        rows: Label and text of each row.

    Returns:
        The table, several lines without a trailing newline.
    """
    width = max(len(label) for label in rows)
    line = "-" * max(len(title), *(width + 3 + len(text) for text in rows.values()))
    body = [f"{label:<{width}} | {text}" for label, text in rows.items()]
    return "\n".join([title, line, *body, line])


def _cast_rows(engine: AmpEngine) -> dict[str, str]:
    casts = engine.casts
    if casts is None:
        return {}
    banned = "run in float32" if casts.allow_banned else "refuse half"
    dtype = _name(casts.half_dtype)
    return {
        "functions cast to": f"{dtype} and float32, by the lists of O1; banned ones {banned}",
        "function casts": f"{casts.implementation}; {casts.reason}",
    }


def _masters(engine: AmpEngine) -> str:
    if not engine.masters.has_masters:
        return "none"
    return "float32, as weights and remainders" if engine.masters.is_split else "float32"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _loss_scale(engine: AmpEngine) -> str:
    scale = f"{engine.loss_scale:.10g}"
    text = f"dynamic, starts at {scale}" if engine.scaler.is_dynamic else f"static {scale}"
    num_losses = len(engine.scalers)
    return text if num_losses == 1 else f"{text}, for each of {num_losses} losses"


def _gradients(engine: AmpEngine, readers: Sequence[str]) -> str:
    if engine.properties.half_dtype is None:
        if engine.scaler.is_identity:
            return "as autograd makes them"
        when = f"before each step, read by {', '.join(readers)}" if readers else "inside the step"
        return f"as autograd makes them, unscaled {when}"
    if not engine.masters.has_masters and engine.scaler.is_identity and not readers:
        return "none, unless clipped: the optimizer steps in half"
    if readers:
        return f"materialised before each step, read by {', '.join(readers)}"
    plain = [type(item).__name__ for item, step in engine.steps.items() if not step.can_fuse]
    if plain:
        return f"materialised before each step, for the step of {', '.join(dict.fromkeys(plain))}"
    return "not materialised: unscaled and clipped inside the step"
