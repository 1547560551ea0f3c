"""The function-cast benchmark's result as Markdown."""

import statistics
from collections.abc import Mapping, Sequence

from benchkit.casts import PEER
from benchkit.table import format_table

__all__ = ["format_cast_report"]

_NOTES = """\
How to read it:

- Times are processor time of one thread, medians over rounds that interleave all columns in \
random order. A ratio is the median over rounds of a column's time over autocast's in the same \
round, with the smallest and largest in brackets: below 1 is faster than torch.autocast.
- `O1 C++` casts at torch's Autocast dispatch keys, `O1 Python` in a `TorchFunctionMode`; both by \
the same lists, which compute more in float32 than torch.autocast does (softmax, layer norm, GELU, \
exp, sums). A step is forward, loss, backward and SGD in a plain loop.
- The cost of an operation is one call on tensors of 4 x 8 without autograd. `over peer` is what \
O1 adds to the peer: torch.autocast where that computes the same, else the same casts by hand \
outside any context.
"""


def format_cast_report(
    environment: Sequence[tuple[str, str]],
    steps: Mapping[str, Mapping[str, Sequence[float]]],
    op_costs: Mapping[str, Mapping[str, Sequence[float]]],
) -> str:
    """Write the report.

    Args:
        environment: Names and values that head it.
        steps: Result of ``measure_cast_steps`` under the title of each workload.
        op_costs: Result of ``measure_op_costs``; empty if it was not measured.

    Returns:
        Markdown, with a final newline.
    """
    facts = "\n".join(f"- {name}: {value}" for name, value in environment)
    parts = ["# O1 against torch.autocast", facts]
    parts += [f"## {title}\n\n{_step_table(times)}" for title, times in steps.items()]
    if op_costs:
        parts.append(f"## Cost of one small operation\n\n{_op_table(op_costs)}")
    return "\n\n".join([*parts, _NOTES])


def _step_table(times: Mapping[str, Sequence[float]]) -> str:
    rows = []
    for name, rounds in times.items():
        ratios = [own / peer for own, peer in zip(rounds, times[PEER], strict=True)]
        rows.append(
            [
                name,
                f"{statistics.median(rounds) * 1e3:.2f}",
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})",
            ]
        )
    return format_table(["casts", "step ms", f"/ {PEER}"], rows)


def _op_table(op_costs: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    names = [name for name in next(iter(op_costs.values())) if name != "by hand"]
    ours = [name for name in names if name.startswith("O1")]
    rows = []
    for operation, costs in op_costs.items():
        peer = costs.get("by hand", costs[PEER])
        row = [operation, *(_microseconds(costs[name]) for name in names)]
        row.append(_microseconds(costs["by hand"]) if "by hand" in costs else "")
        for name in ours:
            extra = [own - other for own, other in zip(costs[name], peer, strict=True)]
            row.append(f"{statistics.median(extra) * 1e6:+.2f}")
        rows.append(row)
    over = [f"{name} over peer" for name in ours]
    return format_table(["us per call", *names, "by hand", *over], rows)


def _microseconds(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1e6:.2f}"
