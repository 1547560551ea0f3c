import pytest
from fused_step import main
from support.bench import run_benchmark
from support.kernels import requires_kernels

from benchkit.step_forms import FORMS


@pytest.mark.slow
@requires_kernels
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    options = ["--smoke", "--lists", "small", "--half-dtypes", "bfloat16", "--threads", "1", "2"]
    report, _ = run_benchmark("fused_step.py", options, output)
    assert f"`python bench/fused_step.py {' '.join(options)} --output {output}`" in report
    assert "- Threads: 1 and 2\n" in report
    for name in FORMS:
        # Two tables of times, one of memory.
        assert report.count(f"\n| {name} |") == 3
    assert "small: ours >= 4.0 x torch fused" in report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lists", "vgg"], "invalid choice: 'vgg'"),
        (["--half-dtypes", "float8"], "invalid choice: 'float8'"),
        (["--threads", "0"], "'0' is not allowed; give a whole number above 0"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
