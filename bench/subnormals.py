"""What subnormal gradients and optimizer states cost the kernels for CPUs.

``python bench/subnormals.py`` prints a Markdown report; ``bench/README.md`` says how to read it.
"""

import os
import shlex
import sys
from collections.abc import Sequence

from benchkit.command_line import (
    add_report_options,
    make_parser,
    positive_count,
    publish,
    require_kernels,
    require_linux,
    require_output_folder,
)
from benchkit.environment import (
    TIMING_ALLOCATOR,
    describe_environment,
    describe_load,
    thread_variables,
)
from benchkit.subnormal_times import INPUTS
from benchkit.table import format_table
from benchkit.worker import run_worker

__all__ = ["main"]

_ISAS = ("base", "avx2", "avx512")
_HALF_DTYPES = ("bfloat16", "float16")
_NUM_ROUNDS = 31


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the report and write it to ``--output``.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser(__doc__)
    parser.add_argument(
        "--rounds", type=positive_count, help="rounds of each input (default: 31; 1 with --smoke)"
    )
    parser.add_argument("--isas", nargs="+", choices=_ISAS, help="default: all that are here")
    add_report_options(parser, "one round, to try the benchmark")
    options = parser.parse_args(given)
    require_linux(parser)
    require_output_folder(parser, options.output)
    widest = require_kernels(parser)
    num_rounds = options.rounds or (1 if options.smoke else _NUM_ROUNDS)
    load_at_start = os.getloadavg()[0]
    tables = {
        (isa, half_dtype): _table(isa, half_dtype, num_rounds)
        # The widest that this machine has is the one in use; it has the narrower ones too.
        for isa in options.isas or _ISAS[: _ISAS.index(widest) + 1]
        for half_dtype in _HALF_DTYPES
    }
    facts = [
        *describe_environment(shlex.join(["python", "bench/subnormals.py", *given]), 1),
        describe_load(load_at_start),
    ]
    lines = ["# Subnormal numbers", "", *(f"- {name}: {value}" for name, value in facts)]
    for (isa, half_dtype), table in tables.items():
        lines += ["", f"## {isa}, {half_dtype}", "", table]
    publish("\n".join([*lines, ""]), options.output)


def _table(isa: str, half_dtype: str, num_rounds: int) -> str:
    times = run_worker(
        "measure_subnormal_times",
        {**TIMING_ALLOCATOR, **thread_variables(1), "LIGHTNING_MP_ISA": isa},
        half_dtype=half_dtype,
        num_rounds=num_rounds,
    )
    header = ["pass", "normal, ns an element", *(f"{name}, x" for name in list(INPUTS)[1:])]
    rows = []
    for key, found in times.items():
        normal, *others = found.values()
        rows.append([key, f"{normal:.3f}", *(f"{other / normal:.2f}" for other in others)])
    return format_table(header, rows)


if __name__ == "__main__":
    main()
