from benchkit.cast_report import format_cast_report

STEPS = {
    "none": [0.1, 0.1, 0.1],
    "autocast": [0.2, 0.4, 0.4],
    "O1 C++": [0.2, 0.42, 0.48],
    "O1 Python": [0.3, 0.6, 0.6],
}
COSTS = {
    "exp, float32": {
        "none": [1e-6, 1e-6],
        "autocast": [2e-6, 3e-6],
        "O1 C++": [2.5e-6, 3e-6],
        "O1 Python": [9e-6, 9e-6],
    },
    "exp, half to float32": {
        "none": [1e-6, 1e-6],
        "autocast": [1e-6, 1e-6],
        "O1 C++": [3e-6, 3e-6],
        "O1 Python": [9e-6, 9e-6],
        "by hand": [4e-6, 4e-6],
    },
}


def row(text, name):
    return next(line for line in text.splitlines() if line.startswith(f"| {name} |"))


def test_step_ratios_are_paired_by_round():
    text = format_cast_report([("Date", "today")], {"a model": STEPS}, {})
    assert "- Date: today" in text
    assert row(text, "O1 C++") == "| O1 C++ | 420.00 | 1.050 (1.000-1.200) |"
    assert "Cost of one small operation" not in text


def test_the_peer_of_an_operation_is_what_computes_the_same():
    text = format_cast_report([], {}, COSTS)
    assert row(text, "exp, float32").endswith(" |  | +0.25 | +6.50 |")
    assert row(text, "exp, half to float32").endswith(" | 4.00 | -1.00 | +5.00 |")
