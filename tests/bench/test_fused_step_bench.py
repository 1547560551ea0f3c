import os
import subprocess
import sys
from pathlib import Path

import pytest
from fused_step import main
from support.kernels import requires_kernels

from benchkit.step_forms import FORMS
from lightning_mp.kernels.library import NativeLibrary

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@requires_kernels
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    options = ["--smoke", "--lists", "small", "--half-dtypes", "bfloat16", "--threads", "1", "2"]
    process = subprocess.run(
        [sys.executable, ROOT / "bench" / "fused_step.py", *options, "--output", output],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    report = output.read_text()
    assert process.stdout == report
    assert f"`python bench/fused_step.py {' '.join(options)} --output {output}`" in report
    assert "- Threads: 1 and 2\n" in report
    for name in FORMS:
        # Two tables of times, one of memory.
        assert report.count(f"\n| {name} |") == 3
    assert "small: ours >= 4.0 x torch fused" in report


@requires_kernels
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lists", "vgg"], "invalid choice: 'vgg'"),
        (["--half-dtypes", "float8"], "invalid choice: 'float8'"),
        (["--threads", "0"], "'0' is not allowed; give a whole number above 0"),
        (["--output", "absent/report.md"], "make absent first"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_references_are_not_timed(monkeypatch, capsys):
    monkeypatch.setattr("fused_step.load_kernels", lambda: NativeLibrary(False, "not built"))
    with pytest.raises(SystemExit):
        main(["--smoke"])
    assert "kernels = reference (torch): not built" in capsys.readouterr().err


def test_other_systems_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SystemExit):
        main(["--smoke"])
    assert "platform = darwin; allowed: linux" in capsys.readouterr().err
