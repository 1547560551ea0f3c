import pytest
from subnormals import main
from support.bench import run_benchmark
from support.kernels import requires_kernels

from benchkit.subnormal_times import INPUTS, measure_subnormal_times


@requires_kernels
def test_every_pass_is_timed_on_every_input():
    times = measure_subnormal_times(half_dtype="bfloat16", num_rounds=1, numel=103)
    assert list(times) == ["norm and check", "AdamW", "SGD with momentum"]
    for found in times.values():
        assert list(found) == list(INPUTS)
        assert all(value > 0.0 for value in found.values())


@pytest.mark.slow
@requires_kernels
def test_the_report_has_a_table_for_every_dtype(tmp_path):
    report, _ = run_benchmark(
        "subnormals.py", ["--smoke", "--isas", "base"], tmp_path / "report.md"
    )
    for half_dtype in ("bfloat16", "float16"):
        assert f"## base, {half_dtype}\n" in report
    assert report.count("\n| AdamW | ") == report.count("\n## ") == 2


def test_an_unknown_instruction_set_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--isas", "sse"])
    assert "argument --isas: invalid choice: 'sse'" in capsys.readouterr().err
