"""What subnormal gradients and optimizer states cost the kernels for CPUs.

``python bench/subnormals.py`` prints a Markdown report; ``bench/README.md`` says how to read it.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchkit.environment import TIMING_ALLOCATOR, describe_environment, thread_variables
from benchkit.subnormal_times import INPUTS
from benchkit.table import format_table
from benchkit.worker import run_worker
from lightning_mp.kernels.library import load_kernels

__all__ = ["main"]

_ISAS = ("base", "avx2", "avx512")
_HALF_DTYPES = ("bfloat16", "float16")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the report and write it to ``--output``.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31, help="rounds of each input (default: 31)")
    parser.add_argument("--isas", nargs="+", choices=_ISAS, help="default: all that are here")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="file for the report")
    options = parser.parse_args(given)
    library = load_kernels()
    if not library.is_loaded:
        parser.error(f"kernels = reference (torch): {library.reason}; only compiled ones are timed")
    facts = describe_environment(shlex.join(["python", "bench/subnormals.py", *given]), 1)
    lines = ["# Subnormal numbers", "", *(f"- {name}: {value}" for name, value in facts), ""]
    # The widest that this machine has is the one in use; it has the narrower ones too.
    for isa in options.isas or _ISAS[: _ISAS.index(library.isa) + 1]:
        for half_dtype in _HALF_DTYPES:
            lines += [f"## {isa}, {half_dtype}", "", _table(isa, half_dtype, options.rounds), ""]
    report = "\n".join(lines)
    print(report)
    if options.output is not None:
        options.output.write_text(report)


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
