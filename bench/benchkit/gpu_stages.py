"""The parts of the GPU script; each has processes of its own, and what fails there is a result."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchkit.environment import thread_variables
from benchkit.step_forms import LOOP
from benchkit.step_result import StepResult, StepRun
from benchkit.worker import run_worker

__all__ = ["NO_TIME", "Budget", "run_checks", "run_fits", "run_steps", "run_tests"]

NO_TIME = "no time was left"

# Less is not enough for a process to find its GPU.
_LEAST_SECONDS = 10.0
_CHECK_SECONDS = 150.0
_STEP_SECONDS = 60.0
_TEST_SECONDS = 90.0
# What a process needs to end after its deadline.
_SPARE_SECONDS = 5.0
_COLUMNS = (
    "32-true/fused",
    "bf16-mixed",
    "bf16-mixed/fused",
    "bf16-true/fused",
    "O1-bf16",
    "O2",
    "O2-bf16",
)
_SMOKE_COLUMNS = ("bf16-mixed", "O2-bf16")
_ROOT = Path(__file__).parents[2]
# How pytest says that there are no such tests.
_NO_TESTS = 5


class Budget:
    """Say how much time is left.

    Args:
        seconds: Time from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, at_most: float = float("inf")) -> float:
        """Return the seconds that are left.

        Args:
            at_most: What one part may take.
        """
        return max(min(self._end - time.monotonic(), at_most), 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether too little is left to begin anything."""
        return self.left() < _LEAST_SECONDS


def run_checks(
    names: Sequence[str], device: str, budget: Budget, *, is_smoke: bool
) -> list[dict[str, Any]]:
    """Run all checks; one that takes its process down takes no other with it.

    Args:
        names: Names of the checks.
        device: ``"cuda"`` or ``"cpu"``.
        budget: Time that is left.
        is_smoke: Whether to be quick.

    Returns:
        As ``measure_gpu_checks`` does, for every name.
    """
    results: list[dict[str, Any]] = []
    remaining = list(names)
    while remaining:
        if budget.is_spent:
            late = {"outcome": "not here", "detail": NO_TIME, "seconds": 0.0}
            return results + [{"name": name, **late} for name in remaining]
        seconds = budget.left(_CHECK_SECONDS)
        try:
            found = run_worker(
                "measure_gpu_checks",
                _variables(device),
                timeout_seconds=seconds,
                names=remaining,
                device=device,
                is_smoke=is_smoke,
            )
        except RuntimeError as error:
            if len(remaining) > 1:
                # Nobody knows which it was.
                for name in remaining:
                    results += run_checks([name], device, budget, is_smoke=is_smoke)
                return results
            reason = str(error).partition("}) ")[2]
            result = {"outcome": "failed", "detail": f"its process {reason}", "seconds": 0.0}
            found = [{"name": remaining[0], **result}]
        results += found
        remaining = remaining[len(found) :]
    return results


def run_steps(
    list_name: str, half_dtype: str, device: str, budget: Budget, *, is_smoke: bool
) -> StepResult | str:
    """Time the steps of a list, and measure their memory.

    Args:
        list_name: Name of the list.
        half_dtype: ``"bfloat16"`` or ``"float16"``.
        device: ``"cuda"`` or ``"cpu"``.
        budget: Time that is left.
        is_smoke: Whether the list is tiny.

    Returns:
        The result, or why there is none.
    """
    shared = {
        "list_name": list_name,
        "half_dtype": half_dtype,
        "device": device,
        "num_threads": 1,
        "is_smoke": is_smoke,
    }

    def measure() -> StepResult:
        seconds = budget.left(_STEP_SECONDS)
        times = run_worker(
            "measure_step_times",
            _variables(device),
            timeout_seconds=seconds,
            num_rounds=2 if is_smoke else 9,
            num_calls=2 if is_smoke else 5,
            # Thousands of launches and waits: it says nothing that `foreach` does not.
            without=[] if device == "cpu" else [LOOP],
            deadline=time.monotonic() + seconds - _SPARE_SECONDS,
            **shared,
        )
        times["num_threads"] = 1 if device == "cpu" else 0
        memory = run_worker(
            "measure_step_memory",
            _variables(device),
            timeout_seconds=budget.left(_STEP_SECONDS),
            **shared,
        )
        return StepResult(list_name, half_dtype, [StepRun(clock="wall", **times)], memory)

    return _or_reason(measure, budget)


def run_fits(
    workload: str, device: str, budget: Budget, *, is_smoke: bool
) -> dict[str, list[dict[str, float]]] | str:
    """Time whole fits.

    Args:
        workload: Name of a workload.
        device: ``"cuda"`` or ``"cpu"``.
        budget: Time that is left.
        is_smoke: Whether the workload is tiny.

    Returns:
        As ``measure_fits`` does, or why there is nothing.
    """
    return _or_reason(
        lambda: run_worker(
            "measure_fits",
            _variables(device),
            timeout_seconds=budget.left(),
            workload=workload,
            columns=_SMOKE_COLUMNS if is_smoke else _COLUMNS,
            device=device,
            num_rounds=1 if is_smoke else 3,
            num_steps=2 if is_smoke else 12,
            # A fit that starts now is to end in time.
            deadline=time.monotonic() + budget.left() * 0.8,
            is_smoke=is_smoke,
        ),
        budget,
    )


def run_tests(budget: Budget) -> str:
    """Run the tests of the project that need a GPU.

    Args:
        budget: Time that is left.

    Returns:
        What pytest says at its end.
    """
    if budget.is_spent:
        return NO_TIME
    if importlib.util.find_spec("pytest") is None:
        return "pytest is not installed"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests/kernels"]
    try:
        process = subprocess.run(
            command,
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=budget.left(_TEST_SECONDS),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"not through after {error.timeout:.0f} s"
    lines = [line for line in (process.stdout + process.stderr).splitlines() if line.strip()]
    if process.returncode in {0, _NO_TESTS}:
        return lines[-1]
    return "failed:\n\n```\n" + "\n".join(lines[-40:]) + "\n```"


def _variables(device: str) -> dict[str, str]:
    return thread_variables(1) if device == "cpu" else {}


def _or_reason(measure: Callable[[], Any], budget: Budget) -> Any:
    if budget.is_spent:
        return NO_TIME
    try:
        return measure()
    except RuntimeError as error:
        return str(error)
