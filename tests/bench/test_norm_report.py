from benchkit.norm_report import format_norm_report

TIMES = {
    "pass 1": {"backward": [0.1, 0.3, 0.2], "norm": [0.002, 0.004, 0.004]},
    "hooks": {"backward": [0.1, 0.1, 0.1], "norm": [0.003, 0.004, 0.005]},
    "free hooks": {"backward": [0.1, 0.1, 0.1], "norm": [0.001, 0.003, 0.002]},
}


def test_ratios_are_paired_by_round():
    result = {"numel": 1_300_000, "num_hooks": 7, "times": TIMES}
    text = format_norm_report([("Date", "today")], {("mlp", "float32 gradients"): result})
    assert "- Date: today" in text
    expected = "| mlp, float32 gradients | 1.3 | 7 | 200.00 | 4.00 | 4.00 |"
    expected += " 1.25 (1.00-1.50) | 0.50 (0.50-0.75) |"
    assert expected in text.splitlines()
