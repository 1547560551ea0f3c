import dataclasses

import pytest

from benchkit.report import WorkloadResult, format_report


def rounds(*seconds):
    return [
        {"cpu": s, "wall": 2 * s, "optimizer_cpu": s / 8, "optimizer_wall": s / 4} for s in seconds
    ]


def quality(**changes):
    return {
        "peak_bytes": 7 * 2**20,
        "bytes_per_parameter": 16.0,
        "loss": 1.25,
        "accuracy": 0.5,
        "num_steps": 60,
        "num_skipped_steps": 0,
        **changes,
    }


RESULT = WorkloadResult(
    title="a model",
    times={
        "bf16-mixed": rounds(0.4, 0.8, 0.6),
        "bf16-mixed/fused": rounds(0.3, 0.3, 0.3),
        "O2": rounds(0.2),
    },
    qualities={
        "bf16-mixed": quality(),
        "bf16-mixed/fused": quality(peak_bytes=14 * 2**20),
        "O2": quality(num_steps=13, num_skipped_steps=3),
    },
    num_quality_steps=60,
    clock="cpu",
)


def rows(text, name):
    return [line.split(" | ") for line in text.splitlines() if line.startswith(f"| {name} |")]


@pytest.mark.parametrize(("clock", "optimizer"), [("cpu", "75.0"), ("wall", "150.0")])
def test_times_are_medians_on_the_chosen_clock(clock, optimizer):
    text = format_report([("Date", "today")], [dataclasses.replace(RESULT, clock=clock)])
    speed, _ = rows(text, "bf16-mixed")
    assert speed[1:5] == ["600.0", "1200.0", optimizer, "3"]
    assert "- Date: today" in text


def test_ratios_are_paired_by_round():
    text = format_report([], [RESULT])
    assert rows(text, r"bf16-mixed/fused\*")[0][5] == "2.00 (1.33-2.67)"
    assert rows(text, "O2")[0][4:6] == ["1", "2.00 (2.00-2.00)"]


def test_memory_is_a_ratio_and_a_cut_fit_says_so():
    text = format_report([], [RESULT])
    assert rows(text, r"bf16-mixed/fused\*")[1][1:3] == ["14", "2.00"]
    cut = rows(text, "O2")[1]
    assert cut[4:] == ["1.2500 (13 of 60 steps)", "50.0 (13 of 60 steps)", "3 |"]


def test_only_peers_that_ran_have_a_ratio():
    lone = dataclasses.replace(
        RESULT, times={"O2": RESULT.times["O2"]}, qualities={"O2": RESULT.qualities["O2"]}
    )
    text = format_report([], [lone])
    assert "x bf16-mixed" not in text
    assert "peak / " not in text
