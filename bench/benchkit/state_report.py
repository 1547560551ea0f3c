"""The accuracy of an optimizer's states as Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchkit.state_training import FULL
from benchkit.table import format_table

__all__ = ["format_state_report"]

_NOTES = """\
How to read it:

- Only the moments of AdamW differ, with betas of 0.9 and 0.999: weights, gradients and arithmetic \
are FP32, so that nothing else hides or causes a difference. A start is a seed: the same first \
weights and the same batches for all forms. Figures are means over starts, with the smallest and \
the largest in brackets.
- `bf16, stochastic` is `FusedAdamW(state_dtype="bf16")`. `bf16, nearest` rounds the FP32 moments \
to the nearest bfloat16 value after every step, as storing them in bfloat16 by `Tensor.copy_` does.
- `training loss` is the mean over the last 100 steps; `loss` and `accuracy` are of examples that \
were not trained on. `- FP32's` is the loss less \
that of FP32 moments from the same start: a form whose bracket holds 0 is as good.
- `moved` is the share of second moments that are not what they were 100 steps before the end. \
With a beta of 0.999 a step shrinks a second moment by at most 0.1 %, and bfloat16 values are \
0.4 % to 0.8 % apart: rounded to nearest it never shrinks, and grows only on large gradients. \
`/ FP32's` is the geometric mean of second moments over that of FP32 ones; Adam's steps go with \
its inverse square root. The learning rate falls to 0 along half a cosine.
"""


def format_state_report(
    environment: Sequence[tuple[str, str]], results: Mapping[str, Mapping[str, Any]]
) -> str:
    """Write the report.

    Args:
        environment: Names and values that head it.
        results: Result of ``measure_state_training`` for each task.

    Returns:
        Markdown, with a final newline.
    """
    facts = "\n".join(f"- {name}: {value}" for name, value in environment)
    sections = [_section(name, result) for name, result in results.items()]
    return "\n\n".join(["# Accuracy of Adam's moments", facts, *sections, _NOTES])


def _section(name: str, result: Mapping[str, Any]) -> str:
    runs = result["runs"]
    num_starts = len(runs[FULL])
    header = ["moments", "training loss", "loss", "- FP32's", "accuracy %"]
    header += ["second moments moved %", "/ FP32's"]
    rows = [
        [
            form,
            _spread([run["training_loss"] for run in own], 4),
            _spread([run["loss"] for run in own], 4),
            _spread([a["loss"] - b["loss"] for a, b in zip(own, runs[FULL], strict=True)], 4),
            _spread([100 * run["accuracy"] for run in own], 2),
            _spread([100 * run["moved"] for run in own], 1),
            _spread([run["scale"] for run in own], 2),
        ]
        for form, own in runs.items()
    ]
    text = f"{result['title']}; {result['num_steps']} steps, {num_starts} starts."
    return "\n\n".join([f"## {name}", text, format_table(header, rows)])


def _spread(values: Sequence[float], digits: int) -> str:
    mean, low, high = statistics.fmean(values), min(values), max(values)
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
