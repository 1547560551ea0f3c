import pytest

from benchkit.timing import measure_times

ARGUMENTS = {"workload": "mlp", "num_steps": 2, "num_threads": 1, "is_smoke": True}
CLOCKS = {"cpu", "wall", "optimizer_cpu", "optimizer_wall"}


@pytest.fixture
def progress(capsys):
    """Names of the columns in the order they were measured in."""
    return lambda: [line.split(": ")[2].split()[0] for line in capsys.readouterr().err.splitlines()]


def test_rounds_interleave_the_columns(progress):
    columns = ["32-true", "bf16-mixed", "O2-bf16", "O3-bf16"]
    times = measure_times(columns=columns, num_rounds=3, max_cpu_seconds=300, **ARGUMENTS)
    order = progress()
    rounds = [order[start : start + 4] for start in (0, 4, 8)]
    assert [sorted(names) for names in rounds] == [sorted(columns)] * 3
    assert len({tuple(names) for names in rounds}) > 1
    assert list(times) == columns
    for column in columns:
        assert [set(medians) for medians in times[column]] == [CLOCKS] * 3


def test_a_column_over_the_limit_has_one_round(progress):
    times = measure_times(columns=["32-true", "O0"], num_rounds=3, max_cpu_seconds=0, **ARGUMENTS)
    assert {name: len(rounds) for name, rounds in times.items()} == {"32-true": 1, "O0": 1}
    assert sorted(progress()) == ["32-true", "O0"]
