"""Does training suffer when Adam keeps its moments in bfloat16?

``python bench/state_accuracy.py`` prints a Markdown report; ``bench/README.md`` says how it
measures.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence

from benchkit.command_line import (
    add_report_options,
    make_parser,
    positive_count,
    publish,
    require_output_folder,
)
from benchkit.environment import describe_environment, thread_variables
from benchkit.state_report import format_state_report
from benchkit.worker import run_worker

__all__ = ["main"]

_TASKS = ("digits", "text")
_NUM_THREADS = 1
_SMOKE_SEEDS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the report and write it to ``--output``.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(given)
    command = shlex.join(["python", "bench/state_accuracy.py", *given])
    results = {
        task: run_worker(
            "measure_state_training",
            thread_variables(_NUM_THREADS),
            task=task,
            num_seeds=_SMOKE_SEEDS if options.smoke else options.seeds,
            num_threads=_NUM_THREADS,
            is_smoke=options.smoke,
        )
        for task in options.tasks
    }
    report = format_state_report(describe_environment(command, _NUM_THREADS), results)
    publish(report, options.output)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=_TASKS, default=_TASKS, help="default: all")
    add("--seeds", type=positive_count, default=4, help="number of starts (default: 4)")
    add_report_options(parser, "a few steps, to try the benchmark")
    options = parser.parse_args(arguments)
    require_output_folder(parser, options.output)
    return options


if __name__ == "__main__":
    main()
