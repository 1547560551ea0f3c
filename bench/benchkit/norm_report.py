"""The result of the benchmark of the norm as Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchkit.norm_taps import FREE_HOOKS, HOOKS, PASS_1
from benchkit.table import format_table

__all__ = ["format_norm_report"]

_NOTES = """\
How to read it:

- Times are processor time of one thread, medians over rounds that interleave all forms in random \
order. A ratio is the median over rounds of a form's time over pass 1's in the same round, with \
the smallest and largest in brackets: below 1 is faster than pass 1.
- `pass 1` is one call over all gradients after backward, which is what a step does. `hooks` calls \
the same kernel for each gradient of 65,536 elements or more as soon as autograd has accumulated \
it, and for all others after backward; getting into the hook is not counted. `free hooks` counts \
neither the hook nor the call, only reading and adding the gradient: no form of the hook can be \
faster. What is between the two is the call, its code driven out of the caches by backward.
- `backward` is what the norm is small against, without time in hooks. Batches are small (8 rows, \
or one sequence of 128 tokens), so that it is short.
"""


def format_norm_report(
    environment: Sequence[tuple[str, str]], results: Mapping[tuple[str, str], Mapping[str, Any]]
) -> str:
    """Write the report.

    Args:
        environment: Names and values that head it.
        results: Result of ``measure_norm_taps`` for each model and dtype of gradients.

    Returns:
        Markdown, with a final newline.
    """
    facts = "\n".join(f"- {name}: {value}" for name, value in environment)
    header = ["model, gradients", "M elements", "hooks", "backward ms", "pass 1 ms", "hooks ms"]
    header += [f"{form} / {PASS_1}" for form in (HOOKS, FREE_HOOKS)]
    rows = [_row(", ".join(names), result) for names, result in results.items()]
    table = format_table(header, rows)
    return "\n\n".join(["# The norm while gradients are in a cache", facts, table, _NOTES])


def _row(name: str, result: Mapping[str, Any]) -> list[str]:
    times = result["times"]
    return [
        name,
        f"{result['numel'] / 1e6:.1f}",
        str(result["num_hooks"]),
        _milliseconds(times[PASS_1]["backward"]),
        _milliseconds(times[PASS_1]["norm"]),
        _milliseconds(times[HOOKS]["norm"]),
        *(_ratio(times[form]["norm"], times[PASS_1]["norm"]) for form in (HOOKS, FREE_HOOKS)),
    ]


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.2f}"


def _ratio(own: Sequence[float], peer: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(own, peer, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
