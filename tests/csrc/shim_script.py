"""Run checks of the kernel shim, each in a process of its own, which may crash.

Reads from stdin a JSON list of [library, check]; writes one JSON list [library, check, error] per
line, where the error is empty for a check that passed.
"""

import json
import os
import signal
import sys
from pathlib import Path

# The library has kernels for CPUs; those of the package would be in their place.
os.environ["LIGHTNING_MP_NO_NATIVE"] = "1"

import torch
from support.shim import Shim
from support.shim_checks import CHECKS

TIMEOUT_SECONDS = 200


def main() -> None:
    torch.set_num_threads(1)
    for library, check in json.load(sys.stdin):
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reader)
            run(library, check, writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            error = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code:
            error = error or (signal.Signals(-code).name if code < 0 else f"exit status {code}")
        print(json.dumps([library, check, error]), flush=True)


def run(library: str, check: str, writer: int) -> None:
    """Write the error of a check to a pipe, and end this process."""
    signal.alarm(TIMEOUT_SECONDS)
    code = 1
    try:
        CHECKS[check](Shim(Path(library)))
        code = 0
    except Exception as problem:
        os.write(writer, f"{type(problem).__name__}: {problem}".encode()[:4000])
    finally:
        # Nothing of the parent's may run on in here.
        os._exit(code)


if __name__ == "__main__":
    main()
