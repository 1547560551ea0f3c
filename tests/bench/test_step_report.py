import pytest

from benchkit.step_forms import ADOPTING, APEX_ORDER, FOREACH, OURS, PASS_1, PASS_2, TORCH_FUSED
from benchkit.step_report import format_step_report
from benchkit.step_result import StepResult, StepRun
from benchkit.step_times import CALLS


def rounds(*milliseconds):
    return [{"cpu": ms * 1e-3, "wall": ms * 5e-4} for ms in milliseconds]


def run(num_threads=1, clock="cpu", **changes):
    times = {
        OURS: rounds(10, 20, 10),
        ADOPTING: rounds(12, 12, 12),
        TORCH_FUSED: rounds(30, 50, 26),
        FOREACH: rounds(80, 80, 80),
        APEX_ORDER: rounds(20, 20, 20),
        PASS_1: rounds(2, 2, 2),
        PASS_2: rounds(8, 8, 8),
        CALLS: rounds(0.5, 0.5, 0.5),
    }
    streams = {
        "read": rounds(1, 1, 1),
        "copied": rounds(8, 8, 8),
        "adopted": rounds(9, 9, 9),
        "split": rounds(7, 7, 7),
        "rounded": rounds(5, 5, 5),
    }
    in_cache = {PASS_1: rounds(0.5, 0.7, 0.4)}
    return StepRun(148, 10_000_000, num_threads, clock, times | changes, streams, in_cache)


MEMORY = {OURS: {"resident": 16.12, "peak": 16.5}}


def report(*results):
    return format_step_report("The fused step", [("CPU", "a chip")], results)


def test_figures_of_a_run():
    measured = run()
    assert measured.seconds(OURS) == 0.010
    assert measured.ratios(TORCH_FUSED, OURS) == pytest.approx([3.0, 2.5, 2.6])
    assert measured.bandwidth_shares(OURS) == pytest.approx([0.9, 0.45, 0.9])
    # 30 bytes of 10 M parameters in 10 ms.
    assert measured.gigabytes_per_second(OURS) == pytest.approx(30.0)
    assert run(clock="wall").seconds(OURS) == 0.005


@pytest.mark.parametrize(
    ("num_threads", "clock", "title"),
    [
        (1, "cpu", "1 thread, processor time"),
        (2, "wall", "2 threads, wall time"),
        (0, "wall", "GPU time"),
    ],
)
def test_title_of_a_run(num_threads, clock, title):
    assert run(num_threads, clock).title == title


def test_tables_have_what_was_measured():
    text = report(StepResult("gpt2", "bfloat16", [run(), run(2, "wall")], MEMORY))
    assert text.startswith("# The fused step\n\n- CPU: a chip\n\n## Goals\n")
    assert "148 tensors, 10.0 M elements." in text
    # Medians, then ratios of the same round.
    assert "| ours | 10.00 | 30.0 | 90 (45-90) | 1.00 (1.00-1.00) |" in text
    assert "| torch fused | 30.00 | 20.0 |  | 2.60 (2.50-3.00) |" in text
    assert "| torch foreach | 80.00 |  |  | 8.00 (4.00-8.00) |" in text
    assert "| pass 1 | 2.00 | 1.00 | 0.50 | 10.0 | 50 (50-50) |" in text
    assert "| pass 2 | 8.00 | 8.00 |  | 35.0 | 100 (100-100) |" in text
    assert "| calls alone | 0.50 |  |  |  |  |" in text
    assert "| ours | 16.12 | 16.50 |" in text
    assert text.count("### ") == 3


def test_goals_are_judged():
    text = report(
        StepResult("gpt2", "bfloat16", [run()], MEMORY),
        StepResult("gpt2", "float16", [run(**{TORCH_FUSED: rounds(28, 56, 28)})]),
        StepResult("resnet50", "float16", [run()]),
    )
    header = "| goal | bfloat16, 1 thread, processor time | float16, 1 thread, processor time |"
    assert header in text
    assert "| gpt2: ours >= 2.7 x torch fused | 2.60 **missed** | 2.80 met |" in text
    assert "| gpt2: ours >= 7.5 x torch foreach | 8.00 met | 8.00 met |" in text
    assert (
        "| gpt2: ours >= 95% of the streams' bandwidth | 90% **missed** | 90% **missed** |" in text
    )
    assert (
        "| gpt2: ours, adopting >= 2.1 x Apex's order | 1.67 **missed** | 1.67 **missed** |" in text
    )
    assert "| gpt2: ours, resident bytes/parameter <= 16.0 | 16.12 met |  |" in text
    # No split masters were measured, and nothing of the small list.
    assert "| gpt2: ours, split masters >= 2.8 x torch fused |  |  |" in text
    assert "| gpt2: ours, split masters, bf16 moments >= 3.0 x torch fused |  |  |" in text
    assert "| small: " not in text
