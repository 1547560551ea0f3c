"""Run a benchmark as its users do."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_benchmark(name: str, options: Sequence[str], output: Path) -> tuple[str, str]:
    """Run a script of ``bench`` in a process of its own, and see that it prints what it writes.

    Args:
        name: File name of the script.
        options: Its options, without ``--output``.
        output: File for the report.

    Returns:
        The report, and what the script said on standard error.
    """
    process = subprocess.run(
        [sys.executable, ROOT / "bench" / name, *options, "--output", output],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    report = output.read_text()
    assert process.stdout == report
    return report, process.stderr
