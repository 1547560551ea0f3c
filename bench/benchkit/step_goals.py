"""What the fused step is meant to reach, and whether it does."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchkit.step_forms import ADOPTING, APEX_ORDER, FOREACH, OURS, ROUNDED, SPLIT, TORCH_FUSED
from benchkit.step_result import StepResult, StepRun
from benchkit.table import format_table

__all__ = ["CPU_GOALS", "GPU_GOALS", "Goal", "format_goals"]

_MEMORY_TOLERANCE = 1.01


class Goal(NamedTuple):
    """Hold one goal.

    Attributes:
        list_name: List of parameters that it is about.
        form: Our way to step that has to reach it.
        wanted: Least ratio or share, or most bytes per parameter.
        peer: Way to step that ours is compared with; ``None`` for the bandwidth or the memory.
        is_memory: Whether it is about bytes per parameter.
    """

    list_name: str
    form: str
    wanted: float
    peer: str | None = None
    is_memory: bool = False

    @property
    def title(self) -> str:
        """What it says."""
        if self.is_memory:
            return f"{self.list_name}: {self.form}, resident bytes/parameter <= {self.wanted:.1f}"
        if self.peer is None:
            return f"{self.list_name}: {self.form} >= {self.wanted:.0%} of the streams' bandwidth"
        return f"{self.list_name}: {self.form} >= {self.wanted:.1f} x {self.peer}"


# Both forms with whole masters are held to the same: `adopting` is what a Trainer runs.
_WHOLE = (OURS, ADOPTING)
CPU_GOALS = (
    *(Goal("gpt2", form, 2.7, TORCH_FUSED) for form in _WHOLE),
    Goal("gpt2", SPLIT, 2.8, TORCH_FUSED),
    Goal("gpt2", ROUNDED, 3.0, TORCH_FUSED),
    *(Goal("gpt2", form, 2.1, APEX_ORDER) for form in _WHOLE),
    *(Goal("gpt2", form, 7.5, FOREACH) for form in _WHOLE),
    *(Goal("gpt2", form, 0.95) for form in (*_WHOLE, SPLIT, ROUNDED)),
    *(Goal("small", form, 4.0, TORCH_FUSED) for form in _WHOLE),
    *(Goal("small", form, 7.0, FOREACH) for form in _WHOLE),
    *(Goal("small", form, 0.80) for form in (*_WHOLE, SPLIT, ROUNDED)),
    Goal("gpt2", OURS, 16.0, is_memory=True),
    Goal("gpt2", SPLIT, 14.0, is_memory=True),
    Goal("gpt2", ROUNDED, 10.0, is_memory=True),
)
GPU_GOALS = (
    *(Goal("gpt2", form, 1.6, APEX_ORDER) for form in _WHOLE),
    *(Goal("gpt2", form, 0.85) for form in (*_WHOLE, SPLIT, ROUNDED)),
    Goal("gpt2", OURS, 16.0, is_memory=True),
    Goal("gpt2", SPLIT, 14.0, is_memory=True),
    Goal("gpt2", ROUNDED, 10.0, is_memory=True),
)


def format_goals(results: Sequence[StepResult], goals: Sequence[Goal] = CPU_GOALS) -> str:
    """Write a table of the goals, with what was measured beside each.

    Args:
        results: Results, with the same runs each.
        goals: The goals.

    Returns:
        Markdown, without a final newline.
    """
    dtypes = list(dict.fromkeys(result.half_dtype for result in results))
    runs = [run.title for run in results[0].runs]
    columns = [(dtype, index) for dtype in dtypes for index in range(len(runs))]
    found = {(result.list_name, result.half_dtype): result for result in results}
    rows = [
        [goal.title, *(_cell(goal, found.get((goal.list_name, dtype)), i) for dtype, i in columns)]
        for goal in goals
        if any(goal.list_name == result.list_name for result in results)
    ]
    header = [f"{dtype}, {runs[index]}" for dtype, index in columns]
    return format_table(["goal", *header], rows)


def _cell(goal: Goal, result: StepResult | None, run_index: int) -> str:
    if result is None:
        return ""
    if goal.is_memory:
        if goal.form not in result.memory:
            return ""
        resident = result.memory[goal.form]["resident"]
        return f"{resident:.2f} {_verdict(resident <= goal.wanted * _MEMORY_TOLERANCE)}"
    value = _measured(goal, result.runs[run_index])
    if value is None:
        return ""
    text = f"{value:.0%}" if goal.peer is None else f"{value:.2f}"
    return f"{text} {_verdict(value >= goal.wanted)}"


def _measured(goal: Goal, run: StepRun) -> float | None:
    if goal.form not in run.times or (goal.peer is not None and goal.peer not in run.times):
        return None
    if goal.peer is None:
        return statistics.median(run.bandwidth_shares(goal.form))
    return statistics.median(run.ratios(goal.peer, goal.form))


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"
