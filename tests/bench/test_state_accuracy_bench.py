import pytest
from state_accuracy import main
from support.bench import run_benchmark

from benchkit.state_training import STATE_FORMS


@pytest.mark.slow
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    report, _ = run_benchmark("state_accuracy.py", ["--smoke"], output)
    for form in STATE_FORMS:
        assert report.count(f"\n| {form} |") == 2
    assert report.count("30 steps, 2 starts.") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "imagenet"], "invalid choice: 'imagenet'"),
        (["--seeds", "0"], "'0' is not allowed; give a whole number above 0"),
        (["--output", "absent/report.md"], "allowed: a file in a folder that exists"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
