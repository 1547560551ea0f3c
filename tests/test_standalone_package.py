"""The same suite for ``pytorch_lightning``, each case in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "standalone_script.py"
REMEDY = "use `import pytorch_lightning as pl` and `pl.Trainer`, or set LIGHTNING_MP_PACKAGE="

pytest.importorskip("pytorch_lightning")


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "LIGHTNING_MP_NO_PATCH": "", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["imported", "variable", "blocked"])
def test_everything_works_with_the_standalone_package(tmp_path, how):
    done = run(SCRIPT, tmp_path, how)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    where = next(i for i, line in enumerate(lines) if line == "in use: pytorch_lightning")
    refusals = [line for line in lines[where:] if REMEDY in line]
    if how == "blocked":
        assert not refusals
        return
    assert refusals[0].startswith("trainer of OverflowLogger = lightning.pytorch.trainer")
    assert "Found invalid type for plugin AmpPrecision(opt_level='O2') (a plugin of" in refusals[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ("pl", "import lightning_mp", "ValueError: LIGHTNING_MP_PACKAGE = 'pl'; allowed are"),
        (
            "lightning",
            "import sys; sys.modules['lightning'] = None; import lightning_mp",
            "RuntimeError: LIGHTNING_MP_PACKAGE = 'lightning', which is not installed",
        ),
    ],
)
def test_a_bad_choice_is_refused_at_import(value, code, message):
    done = run("-c", code, LIGHTNING_MP_PACKAGE=value)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(message)
