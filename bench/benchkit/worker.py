"""Measurements in processes of their own, with their own environment.

``python -m benchkit.worker FUNCTION ARGUMENTS`` is what they run; arguments and result are JSON.
"""

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["main", "run_worker"]


def run_worker(function: str, environment: Mapping[str, str], **arguments: Any) -> Any:
    """Run a measurement in a new process; its progress goes to stderr.

    Args:
        function: Name of a measurement: ``"measure_times"``, ``"measure_quality"``,
            ``"measure_cast_steps"`` or ``"measure_op_costs"``.
        environment: Variables to set there, beside the present ones.
        **arguments: Arguments of the function, such as JSON can hold.

    Returns:
        What the function returned.

    Raises:
        RuntimeError: If the process failed.
    """
    # What this process can import, that one must import too, and from the same place.
    path = {"PYTHONPATH": os.pathsep.join(item for item in sys.path if item)}
    process = subprocess.run(
        [sys.executable, "-m", "benchkit.worker", function, json.dumps(arguments)],
        env={**os.environ, **path, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise RuntimeError(
            f"{function}({arguments}) ended with exit code {process.returncode}; expected 0; see "
            "its own message above"
        )
    return json.loads(process.stdout.splitlines()[-1])


def main(function: str, arguments: str) -> None:
    """Run a measurement here and print its result as one line of JSON.

    Args:
        function: Name of the measurement.
        arguments: Its arguments as a JSON object.
    """
    from benchkit.cast_steps import measure_cast_steps  # slow imports, for the worker only
    from benchkit.op_costs import measure_op_costs
    from benchkit.quality import measure_quality
    from benchkit.timing import measure_times

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Each fit of Lightning 2.4 to 2.6 warns of Lightning's own code, and of what is wanted here.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
    warnings.filterwarnings("ignore", ".*does not have many workers")
    functions: dict[str, Callable[..., Any]] = {
        item.__name__: item
        for item in (measure_times, measure_quality, measure_cast_steps, measure_op_costs)
    }
    print(json.dumps(functions[function](**json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
