"""The fused-step benchmark's result as Markdown."""

import statistics
from collections.abc import Sequence

from benchkit.step_forms import ADOPTING, BYTES_MOVED, OURS, ROUNDED, SPLIT
from benchkit.step_goals import format_goals
from benchkit.step_lists import list_title
from benchkit.step_result import STREAMS_OF, StepResult, StepRun
from benchkit.step_times import CALLS
from benchkit.table import format_table

__all__ = ["format_sections", "format_step_report"]

_OURS = (OURS, ADOPTING, SPLIT, ROUNDED)

_NOTES = """\
How to read it:

- A step begins with scaled half gradients and ends with clipped, updated FP32 masters and half \
weights. Times are medians over rounds that interleave everything in random order. A ratio is the \
median over rounds of the peer's time over ours in the same round, with the smallest and largest \
in brackets: above 1, ours is faster.
- `adopting` also looks for half weights that somebody else wrote; so a Trainer steps. `split \
masters` keep the FP32 master as the bf16 weight and 16 bits more. `bf16 moments` are rounded \
stochastically; what that does to training is in the results of `state_accuracy.py`.
- `torch fused` copies gradients to FP32, unscales them as GradScaler does, clips by \
`clip_grad_norm_(foreach=True)`, steps by `AdamW(fused=True)` and copies the weights back; `torch \
foreach` has `AdamW(foreach=True)`. `Apex's order` is Apex's five passes, each by a kernel of \
ours. `loop` takes one tensor at a time.
- GB/s counts the bytes that a way asks for, not what a cache reads before it can write. `% of \
streams` is the time of the same mix of streams with next to no arithmetic, measured in the same \
rounds, over the time of the step.
- What limits: a pass near 100 % waits for memory. `in cache` is the same pass over elements that \
stay in a cache: arithmetic alone, which is dear where it comes near `streams`, because the two \
never overlap entirely. `calls alone` are both calls on as many tensors of one element: checking \
and looking up tensors, whatever their size.
- Bytes per parameter are resident memory, weights and gradients included, above what there was \
before.
"""


def format_step_report(
    title: str, environment: Sequence[tuple[str, str]], results: Sequence[StepResult]
) -> str:
    """Write the report.

    Args:
        title: Its heading.
        environment: Names and values that head it.
        results: At least one result, all with as many runs.

    Returns:
        Markdown, with a final newline.
    """
    facts = "\n".join(f"- {name}: {value}" for name, value in environment)
    goals = f"## Goals\n\n{format_goals(results)}"
    return "\n\n".join([f"# {title}", facts, goals, *format_sections(results), _NOTES])


def format_sections(results: Sequence[StepResult]) -> list[str]:
    """Write one section for each result.

    Args:
        results: The results.

    Returns:
        Markdown of each, without a final newline.
    """
    return [_section(result) for result in results]


def _section(result: StepResult) -> str:
    first = result.runs[0]
    parts = [
        f"## {list_title(result.list_name)}, {result.half_dtype}",
        f"{first.num_tensors} tensors, {first.numel / 1e6:.1f} M elements.",
    ]
    for run in result.runs:
        parts += [f"### {run.title}", _speed_table(run), _limit_table(run)]
    if result.memory:
        parts += ["### Memory", _memory_table(result)]
    return "\n\n".join(parts)


def _speed_table(run: StepRun) -> str:
    ours = [name for name in _OURS if name in run.times]
    rows = []
    for name in run.times:
        if name == CALLS or name.startswith("pass "):
            continue
        rows.append(
            [
                name,
                f"{run.seconds(name) * 1e3:.2f}",
                f"{run.gigabytes_per_second(name):.1f}" if name in BYTES_MOVED else "",
                _shares(run, name),
                *(_ratio(run, name, own) for own in ours),
            ]
        )
    return format_table(["step", "ms", "GB/s", "% of streams", *(f"/ {own}" for own in ours)], rows)


def _limit_table(run: StepRun) -> str:
    rows = [
        [
            name,
            f"{run.seconds(name) * 1e3:.2f}",
            f"{run.stream_seconds(name) * 1e3:.2f}",
            _cached_milliseconds(run, name),
            f"{run.gigabytes_per_second(name):.1f}",
            _shares(run, name),
        ]
        for name in run.times
        if name.startswith("pass ")
    ]
    rows.append([CALLS, f"{run.seconds(CALLS) * 1e3:.2f}", "", "", "", ""])
    header = ["what limits ours", "ms", "streams ms", "in cache ms", "GB/s", "% of streams"]
    return format_table(header, rows)


def _cached_milliseconds(run: StepRun, name: str) -> str:
    if name not in run.in_cache:
        return ""
    return f"{statistics.median(times[run.clock] for times in run.in_cache[name]) * 1e3:.2f}"


def _memory_table(result: StepResult) -> str:
    rows = [
        [name, f"{sizes['resident']:.2f}", f"{sizes['peak']:.2f}"]
        for name, sizes in result.memory.items()
    ]
    return format_table(["step", "bytes/parameter after a step", "at the peak"], rows)


def _shares(run: StepRun, name: str) -> str:
    if name not in STREAMS_OF:
        return ""
    shares = [share * 100 for share in run.bandwidth_shares(name)]
    return f"{statistics.median(shares):.0f} ({min(shares):.0f}-{max(shares):.0f})"


def _ratio(run: StepRun, peer: str, own: str) -> str:
    ratios = run.ratios(peer, own)
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
