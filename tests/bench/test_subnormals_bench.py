import pytest
from subnormals import main
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
def test_the_report_has_a_table_for_every_dtype(tmp_path, capsys):
    output = tmp_path / "report.md"
    main(["--rounds", "1", "--isas", "base", "--output", str(output)])
    report = output.read_text()
    assert report in capsys.readouterr().out
    for half_dtype in ("bfloat16", "float16"):
        assert f"## base, {half_dtype}\n" in report
    assert report.count("\n| AdamW | ") == report.count("\n## ") == 2


@pytest.mark.parametrize(("option", "value"), [("--isas", "sse"), ("--rounds", "x")])
def test_bad_options_are_refused(option, value, capsys):
    with pytest.raises(SystemExit):
        main([option, value])
    assert f"argument {option}: invalid" in capsys.readouterr().err
