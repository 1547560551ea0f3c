"""The precision benchmark's result as Markdown."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchkit.column import parse_column
from benchkit.table import format_table

__all__ = ["WorkloadResult", "format_report"]

# Faster than the named peer is above 1. The fused peer of bf16-mixed is the strictest of them.
_PEERS = ("bf16-mixed", "bf16-mixed/fused", "32-true", "32-true/fused")
_MEMORY_PEER = "bf16-mixed"

_NOTES = """\
How to read it:

- A step is everything between the ends of two batches. Times are medians over rounds that \
interleave all columns in random order. A ratio is the median over rounds of the peer's time over \
the column's, with the smallest and largest in brackets: above 1 is faster than the peer. Ratios \
and optimizer times are {clock}.
- `NAME` trains with `AdamW()` as it comes, `NAME/fused` with `AdamW(fused=True)`. Lightning \
refuses the latter with clipping under a mixed precision; that peer runs with the check bypassed, \
which no user can do (marked \\*).
- Peak memory is the high-water mark of a process of its own, above what it had before the model \
was made. Bytes per parameter are weights, masters, gradients and moments after a step.
- Loss and accuracy come after {num_quality_steps} steps on the same data, as means over the last \
10; no batch comes twice and each is judged before its step. A column too slow for all steps says \
how many it did: its loss is not comparable.
"""


@dataclass(frozen=True)
class WorkloadResult:
    """Hold what was measured for one workload.

    Attributes:
        title: What the workload is.
        times: Result of ``measure_times``.
        qualities: Result of ``measure_quality`` for each column.
        num_quality_steps: Number of steps asked of ``measure_quality``.
        clock: ``"cpu"`` or ``"wall"``: the clock that ratios are taken from.
    """

    title: str
    times: dict[str, list[dict[str, float]]]
    qualities: dict[str, dict[str, float]]
    num_quality_steps: int
    clock: str


def format_report(environment: Sequence[tuple[str, str]], results: Sequence[WorkloadResult]) -> str:
    """Write the report.

    Args:
        environment: Names and values that head it.
        results: At least one workload's result.

    Returns:
        Markdown, with a final newline.
    """
    clock = {"cpu": "processor time of the process, system time included", "wall": "wall time"}
    notes = _NOTES.format(
        clock=clock[results[0].clock], num_quality_steps=results[0].num_quality_steps
    )
    facts = "\n".join(f"- {name}: {value}" for name, value in environment)
    sections = [_section(result) for result in results]
    return "\n".join(["# Step time, memory and loss by precision", "", facts, "", *sections, notes])


def _section(result: WorkloadResult) -> str:
    parts = [f"## {result.title}", _speed_table(result), _quality_table(result)]
    return "\n\n".join(parts) + "\n"


def _speed_table(result: WorkloadResult) -> str:
    peers = [peer for peer in _PEERS if peer in result.times]
    header = ["column", "step CPU ms", "step wall ms", "optimizer ms", "rounds"]
    rows = [
        [
            _label(name),
            _milliseconds(rounds, "cpu"),
            _milliseconds(rounds, "wall"),
            _milliseconds(rounds, f"optimizer_{result.clock}"),
            str(len(rounds)),
            *(_ratio(result.times[peer], rounds, result.clock) for peer in peers),
        ]
        for name, rounds in result.times.items()
    ]
    return format_table([*header, *(f"x {_label(peer)}" for peer in peers)], rows)


def _quality_table(result: WorkloadResult) -> str:
    header = ["column", "peak MiB", "bytes/parameter", "loss", "accuracy %", "skipped steps"]
    peer = result.qualities.get(_MEMORY_PEER)
    if peer is not None:
        header.insert(2, f"peak / {_MEMORY_PEER}")
    rows = []
    for name, quality in result.qualities.items():
        done, wanted = quality["num_steps"], result.num_quality_steps
        remark = f" ({done:.0f} of {wanted} steps)" if done < wanted else ""
        row = [
            _label(name),
            f"{quality['peak_bytes'] / 2**20:.0f}",
            f"{quality['bytes_per_parameter']:.2f}",
            f"{quality['loss']:.4f}{remark}",
            f"{quality['accuracy'] * 100:.1f}{remark}",
            f"{quality['num_skipped_steps']:.0f}",
        ]
        if peer is not None:
            row.insert(2, f"{quality['peak_bytes'] / peer['peak_bytes']:.2f}")
        rows.append(row)
    return format_table(header, rows)


def _label(name: str) -> str:
    return rf"{name}\*" if parse_column(name).bypasses_clip_check else name


def _milliseconds(rounds: Sequence[dict[str, float]], clock: str) -> str:
    return f"{statistics.median(times[clock] for times in rounds) * 1e3:.1f}"


def _ratio(
    peer_rounds: Sequence[dict[str, float]], rounds: Sequence[dict[str, float]], clock: str
) -> str:
    # A slow column has fewer rounds; each is compared with the peer's of the same round.
    ratios = [peer[clock] / own[clock] for peer, own in zip(peer_rounds, rounds, strict=False)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
