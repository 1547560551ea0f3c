import os
import subprocess
import sys
from pathlib import Path

import pytest
from precision import main

from benchkit.worker import run_worker

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    columns = ["bf16-mixed", "bf16-mixed/fused", "O2-bf16"]
    options = ["--smoke", "--workloads", "transformer", "--columns", *columns]
    process = subprocess.run(
        [sys.executable, ROOT / "bench" / "precision.py", *options, "--output", output],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    report = output.read_text()
    assert process.stdout == report
    assert "MALLOC_MMAP_THRESHOLD_=" in report
    assert f"`python bench/precision.py {' '.join(options)} --output {output}`" in report
    for label in ("bf16-mixed", r"bf16-mixed/fused\*", "O2-bf16"):
        assert report.count(f"\n| {label} |") == 2
    # Two rounds and one fit for memory of each column.
    assert process.stderr.count("transformer: ") == 9


@pytest.mark.slow
def test_a_failing_worker_is_an_error():
    with pytest.raises(RuntimeError, match=r"measure_quality\(.*exit code 1; expected 0"):
        run_worker("measure_quality", {}, workload="vgg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "O7"], "column = 'O7'; allowed are 32-true"),
        (["--rounds", "0"], "'0' is not allowed; give a whole number above 0"),
        (["--steps", "many"], "'many' is not allowed"),
        (["--workloads", "vgg"], "invalid choice: 'vgg'"),
        (["--output", "absent/report.md"], "make absent first"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_other_systems_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SystemExit):
        main(["--smoke"])
    assert "platform = darwin; allowed: linux" in capsys.readouterr().err
