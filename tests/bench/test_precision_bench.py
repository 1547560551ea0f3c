import pytest
from precision import main
from support.bench import run_benchmark

from benchkit.worker import run_worker


@pytest.mark.slow
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    columns = ["bf16-mixed", "bf16-mixed/fused", "O2-bf16"]
    options = ["--smoke", "--workloads", "transformer", "--columns", *columns]
    report, errors = run_benchmark("precision.py", options, output)
    assert "MALLOC_MMAP_THRESHOLD_=" in report
    assert f"`python bench/precision.py {' '.join(options)} --output {output}`" in report
    for label in ("bf16-mixed", r"bf16-mixed/fused\*", "O2-bf16"):
        assert report.count(f"\n| {label} |") == 2
    # Two rounds and one fit for memory of each column.
    assert errors.count("transformer: ") == 9


@pytest.mark.slow
def test_a_failing_worker_is_an_error():
    with pytest.raises(RuntimeError, match=r"measure_quality\(.*exit code 1; expected 0"):
        run_worker("measure_quality", {}, workload="vgg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "O7"], "column = 'O7'; allowed are 32-true"),
        (["--steps", "many"], "'many' is not allowed"),
        (["--workloads", "vgg"], "invalid choice: 'vgg'"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
