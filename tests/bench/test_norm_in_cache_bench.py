import pytest
from norm_in_cache import main
from support.bench import run_benchmark
from support.kernels import requires_kernels


@pytest.mark.slow
@requires_kernels
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    options = ["--smoke", "--models", "mlp", "width 256"]
    report, _ = run_benchmark("norm_in_cache.py", options, output)
    for model in ("mlp", "width 256"):
        for dtype in ("bfloat16", "float32"):
            assert report.count(f"\n| {model}, {dtype} gradients |") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "vgg"], "invalid choice: 'vgg'"),
        (["--gradient-dtypes", "float8"], "invalid choice: 'float8'"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
