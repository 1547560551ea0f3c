import os
import subprocess
import sys
from pathlib import Path

import pytest
from norm_in_cache import main
from support.kernels import requires_kernels

from lightning_mp.kernels.library import NativeLibrary

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@requires_kernels
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    options = ["--smoke", "--models", "mlp", "width 256"]
    process = subprocess.run(
        [sys.executable, ROOT / "bench" / "norm_in_cache.py", *options, "--output", output],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    report = output.read_text()
    assert process.stdout == report
    for model in ("mlp", "width 256"):
        for dtype in ("bfloat16", "float32"):
            assert report.count(f"\n| {model}, {dtype} gradients |") == 1


@requires_kernels
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "vgg"], "invalid choice: 'vgg'"),
        (["--gradient-dtypes", "float8"], "invalid choice: 'float8'"),
        (["--rounds", "0"], "'0' is not allowed; give a whole number above 0"),
        (["--output", "absent/report.md"], "make absent first"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_references_are_not_timed(monkeypatch, capsys):
    monkeypatch.setattr("norm_in_cache.load_kernels", lambda: NativeLibrary(False, "not built"))
    with pytest.raises(SystemExit):
        main(["--smoke"])
    assert "kernels = reference (torch): not built" in capsys.readouterr().err
