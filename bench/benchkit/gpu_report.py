"""What the GPU script found, as Markdown."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchkit.gpu_stages import NO_TIME
from benchkit.step_goals import GPU_GOALS, format_goals
from benchkit.step_report import format_sections
from benchkit.step_result import StepResult
from benchkit.table import format_table

__all__ = ["GpuFindings", "format_gpu_report"]

_PEERS = ("bf16-mixed", "bf16-mixed/fused")

_NOTES = """\
How to read it:

- A check compares operations with their references on the host, or with what must hold bit for \
bit; `not here` means that it needs something this device lacks.
- Steps: medians over rounds that interleave everything in random order, some calls in a row each. \
`% of streams` compares with copies of as many bytes. `/ ours` above 1: ours is faster. What each \
way does is said in `bench/README.md`.
- Host time is the processor time until all work of a step is started; a step cannot be faster.
- Fits: the stock Trainer, AdamW, gradients clipped to norm 1; all timed steps together, waiting \
for the device at both ends. `NAME/fused` trains with `AdamW(fused=True)`; Lightning refuses it \
with clipping under a mixed precision, and runs it here because its check is bypassed.
"""


@dataclass
class GpuFindings:
    """Hold what was found so far.

    Attributes:
        environment: Names and values that head the report.
        checks: Result of ``run_checks``.
        steps: Results of lists; a text where there is none.
        fits: Results under the title of each workload; a text where there is none.
        tests: What pytest said.
    """

    environment: Sequence[tuple[str, str]]
    checks: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[str, StepResult | str] = field(default_factory=dict)
    fits: dict[str, dict[str, list[dict[str, float]]] | str] = field(default_factory=dict)
    tests: str = ""

    @property
    def num_failures(self) -> int:
        """Number of parts that failed."""
        failed = [check for check in self.checks if check["outcome"] == "failed"]
        parts = (*self.steps.values(), *self.fits.values())
        reasons = [item for item in parts if isinstance(item, str) and item != NO_TIME]
        return len(failed) + len(reasons) + self.tests.startswith(("failed", "not through"))


def format_gpu_report(findings: GpuFindings) -> str:
    """Write the report.

    Args:
        findings: What was found.

    Returns:
        Markdown, with a final newline.
    """
    facts = "\n".join(f"- {name}: {value}" for name, value in findings.environment)
    parts = ["# Checks and times on a GPU", facts]
    if findings.checks:
        outcomes = Counter(check["outcome"] for check in findings.checks)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        parts.append(f"## Checks: {counts}\n\n{_check_table(findings.checks)}")
    if findings.tests:
        parts.append(f"## Tests that need a GPU\n\n{findings.tests}")
    results = [item for item in findings.steps.values() if isinstance(item, StepResult)]
    if results:
        parts.append(f"## Goals\n\n{format_goals(results, GPU_GOALS)}")
        parts.append(f"## Host time of a step\n\n{_host_table(results)}")
        parts += format_sections(results)
    for title, item in findings.steps.items():
        if isinstance(item, str):
            parts.append(f"## {title}\n\n{item}")
    for title, fits in findings.fits.items():
        parts.append(f"## {title}\n\n{fits if isinstance(fits, str) else _fit_table(fits)}")
    return "\n\n".join([*parts, _NOTES])


def _check_table(checks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            check["name"],
            "**failed**" if check["outcome"] == "failed" else check["outcome"],
            f"{check['seconds']:.1f}",
            check["detail"].replace("|", r"\|"),
        ]
        for check in checks
    ]
    return format_table(["check", "outcome", "seconds", "found"], rows)


def _host_table(results: Sequence[StepResult]) -> str:
    names = list(dict.fromkeys(name for result in results for name in result.runs[0].times))
    header = [f"{result.list_name}, {result.half_dtype}, us" for result in results]
    rows = [
        [name, *(_host_microseconds(result, name) for result in results)]
        for name in names
        if not name.startswith("pass ")
    ]
    return format_table(["step", *header], rows)


def _host_microseconds(result: StepResult, name: str) -> str:
    rounds = result.runs[0].times.get(name)
    if rounds is None:
        return ""
    return f"{statistics.median(times['cpu'] for times in rounds) * 1e6:.0f}"


def _fit_table(fits: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    measured = {name: rounds for name, rounds in fits.items() if rounds}
    peers = [peer for peer in _PEERS if peer in measured]
    rows = []
    for name, rounds in measured.items():
        seconds = statistics.median(item["seconds"] for item in rounds)
        ratios = [
            statistics.median(item["seconds"] for item in measured[peer]) / seconds
            for peer in peers
        ]
        row = [name, f"{seconds * 1e3:.2f}", str(len(rounds))]
        row += [f"{ratio:.2f}" for ratio in ratios]
        row += [f"{rounds[-1]['peak_bytes'] / 2**20:.0f}", f"{rounds[-1]['loss']:.4f}"]
        rows.append(row)
    header = ["column", "step ms", "rounds", *(f"x {peer}" for peer in peers), "peak MiB", "loss"]
    missing = [name for name in fits if name not in measured]
    table = format_table(header, rows)
    return f"{table}\n\nNo time was left for {', '.join(missing)}." if missing else table
