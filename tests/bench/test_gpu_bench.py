import gpu
import pytest
import torch
from gpu import main, missing
from support.bench import run_benchmark

from benchkit import gpu_stages
from benchkit.gpu_fits import measure_fits
from benchkit.gpu_report import GpuFindings, format_gpu_report
from benchkit.gpu_stages import NO_TIME, Budget, run_checks, run_fits, run_steps, run_tests
from benchkit.step_forms import APEX_ORDER, OURS
from benchkit.step_times import CALLS
from lightning_mp.kernels.library import load_kernels


@pytest.mark.slow
def test_a_smoke_run_writes_its_report(tmp_path):
    output = tmp_path / "report.md"
    options = ["--device", "cpu", "--smoke", "--parts", "checks", "fits"]
    report, _ = run_benchmark("gpu.py", options, output)
    assert "## Checks: 13 passed, 5 not here" in report
    assert "Device: CPU: this only tries the script" in report
    assert "| O2-bf16 |" in report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "--device = cpu; allowed: cuda, or cpu with --smoke"),
        (["--parts", "lunch"], "invalid choice: 'lunch'"),
        (["--output", "absent/report.md"], "make absent first"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def fake_torch(monkeypatch, *, cuda="13.0", is_available=True, version="2.13.0+cu130"):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    monkeypatch.setattr(torch, "__version__", version)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ({"cuda": None, "version": "2.13.0+cpu"}, "torch = 2.13.0+cpu, which is built without"),
        ({"is_available": False}, "GPUs = none that torch 2.13.0+cu130 can use"),
        ({"version": "2.10.0+cu130"}, "torch = 2.10.0+cu130; allowed: 2.11 or later"),
    ],
)
def test_what_is_missing_is_said(machine, message, monkeypatch, capsys):
    fake_torch(monkeypatch, **machine)
    with pytest.raises(SystemExit):
        main([])
    error = capsys.readouterr().err
    assert message in error
    assert "or try it with --device cpu --smoke" in error


@pytest.mark.parametrize("is_built", [False, True])
def test_kernels_for_gpus_are_needed(is_built, monkeypatch):
    fake_torch(monkeypatch)
    load_kernels()
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda *_: is_built)
    assert (missing() is None) == is_built
    if not is_built:
        assert "kernels for GPUs = not built" in str(missing())


def outcome(name, what="passed"):
    return {"name": name, "outcome": what, "detail": "", "seconds": 0.1}


def test_a_check_that_kills_its_process_takes_no_other_along(monkeypatch):
    calls = []

    def worker(function, environment, *, names, **arguments):
        calls.append(names)
        if "deadly" in names:
            raise RuntimeError(f"{function}({{'names': {names}}}) ended with exit code -11")
        return [outcome(name) for name in names]

    monkeypatch.setattr(gpu_stages, "run_worker", worker)
    results = run_checks(["a", "deadly", "b"], "cpu", Budget(100), is_smoke=True)
    assert [(item["name"], item["outcome"]) for item in results] == [
        ("a", "passed"),
        ("deadly", "failed"),
        ("b", "passed"),
    ]
    assert results[1]["detail"] == "its process ended with exit code -11"
    assert calls == [["a", "deadly", "b"], ["a"], ["deadly"], ["b"]]


def test_checks_go_on_in_a_new_process_after_a_lost_gpu(monkeypatch):
    monkeypatch.setattr(
        gpu_stages, "run_worker", lambda *_, names, **__: [outcome(names[0], "failed")]
    )
    results = run_checks(["a", "b"], "cpu", Budget(100), is_smoke=True)
    assert [item["name"] for item in results] == ["a", "b"]


def test_nothing_starts_without_time(monkeypatch):
    monkeypatch.setattr(gpu_stages, "run_worker", None)
    spent = Budget(0.0)
    assert run_steps("gpt2", "bfloat16", "cpu", spent, is_smoke=True) == NO_TIME
    assert run_fits("gpt2", "cpu", spent, is_smoke=True) == NO_TIME
    assert run_tests(spent) == NO_TIME
    (check,) = run_checks(["a"], "cpu", spent, is_smoke=True)
    assert (check["outcome"], check["detail"]) == ("not here", NO_TIME)


def times(*milliseconds):
    return [{"wall": ms * 1e-3, "cpu": ms * 1e-4} for ms in milliseconds]


def measured(**arguments):
    return {
        "num_tensors": 148,
        "numel": 1_000_000,
        "num_threads": arguments["num_threads"],
        "times": {OURS: times(1.0), APEX_ORDER: times(1.8), CALLS: times(0.1)},
        "streams": {name: times(0.45) for name in ("read", "copied", "adopted", "split")},
    }


@pytest.fixture
def fake_worker(monkeypatch):
    def worker(function, environment, **arguments):
        if function == "measure_step_times":
            assert (arguments["without"] == []) == (arguments["device"] == "cpu")
            return measured(**arguments)
        if function == "measure_step_memory":
            return {OURS: {"resident": 16.0, "peak": 16.0}}
        raise RuntimeError(f"{function} ran for 7 s; allowed: less")

    monkeypatch.setattr(gpu_stages, "run_worker", worker)


@pytest.mark.usefixtures("fake_worker")
def test_the_report_has_what_was_found_and_what_failed():
    findings = GpuFindings([("Device", "a GPU")])
    findings.checks = [outcome("a"), outcome("b", "failed"), outcome("c")]
    for dtype in ("bfloat16", "float16"):
        result = run_steps("gpt2", dtype, "cuda", Budget(100), is_smoke=False)
        findings.steps[f"gpt2, {dtype}"] = result
    findings.steps["small, float16"] = NO_TIME
    findings.fits["a model"] = run_fits("gpt2", "cuda", Budget(100), is_smoke=False)
    findings.tests = "7 passed"
    report = format_gpu_report(findings)
    assert "## Checks: 2 passed, 1 failed" in report
    assert "| b | **failed** |" in report
    assert "| gpt2: ours >= 1.6 x Apex's order | 1.80 met | 1.80 met |" in report
    assert "| gpt2: ours >= 85% of the streams' bandwidth | 90% met | 90% met |" in report
    assert "### GPU time" in report
    assert "| ours | 100 | 100 |" in report
    assert f"## small, float16\n\n{NO_TIME}" in report
    assert "## a model\n\nmeasure_fits ran for 7 s" in report
    # A check and the fits; what there was no time for is no failure.
    assert findings.num_failures == 2
    findings.tests = "failed:\n\n```\nE\n```"
    assert findings.num_failures == 3


def test_fits_are_compared_with_stock_precisions():
    rounds = {
        "bf16-mixed": [{"seconds": 0.3, "peak_bytes": 2**30, "loss": 2.5}] * 2,
        "O2-bf16": [{"seconds": 0.2, "peak_bytes": 2**29, "loss": 2.5}],
        "O2": [],
    }
    report = format_gpu_report(GpuFindings([], fits={"a model": rounds}))
    assert "| column | step ms | rounds | x bf16-mixed | peak MiB | loss |" in report
    assert "| O2-bf16 | 200.00 | 1 | 1.50 | 512 | 2.5000 |" in report
    assert "No time was left for O2." in report


def test_fits_interleave_the_columns(capsys):
    columns = ["bf16-mixed", "O2-bf16"]
    found = measure_fits(
        workload="mlp", columns=columns, device="cpu", num_rounds=2, num_steps=2, is_smoke=True
    )
    assert {name: len(rounds) for name, rounds in found.items()} == dict.fromkeys(columns, 2)
    assert all(item["seconds"] > 0 for rounds in found.values() for item in rounds)
    late = measure_fits(
        workload="mlp",
        columns=columns,
        device="cpu",
        num_rounds=1,
        num_steps=2,
        deadline=0.0,
        is_smoke=True,
    )
    assert late == {"bf16-mixed": [], "O2-bf16": []}


def test_a_failed_part_is_an_exit_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "run_checks", lambda *_, **__: [outcome("a", "failed")])
    output = tmp_path / "report.md"
    options = ["--device", "cpu", "--smoke", "--parts", "checks", "--output", str(output)]
    with pytest.raises(SystemExit, match="1"):
        main(options)
    assert capsys.readouterr().out == output.read_text()
