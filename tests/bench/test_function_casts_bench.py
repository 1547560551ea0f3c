import pytest
from function_casts import main
from support.bench import run_benchmark

from benchkit.casts import CASTS
from lightning_mp.amp.native_casts import native_status


@pytest.mark.slow
@pytest.mark.skipif(not native_status(("cpu",))[0], reason="the native library was not built")
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    report, _ = run_benchmark("function_casts.py", ["--smoke"], output)
    assert report.count("\n## ") == 5
    for name in CASTS:
        assert report.count(f"\n| {name} |") == 4
    assert "| exp, half to float32 |" in report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "vgg"], "invalid choice: 'vgg'"),
        (["--half-dtype", "float8"], "invalid choice: 'float8'"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
