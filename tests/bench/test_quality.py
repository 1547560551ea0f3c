import math

import pytest

from benchkit.quality import measure_quality

ARGUMENTS = {"workload": "mlp", "num_threads": 1, "is_smoke": True}


@pytest.mark.parametrize(
    ("column", "bytes_per_parameter"),
    [
        ("32-true", 16),
        ("bf16-mixed", 16),
        ("bf16-true/fused", 8),
        ("O0", 16),
        # Half weight and gradient, FP32 master and two moments.
        ("O2-bf16", 16),
        ("O3-bf16", 8),
    ],
)
def test_bytes_of_a_parameter(column, bytes_per_parameter):
    result = measure_quality(column=column, num_steps=3, max_cpu_seconds=300, **ARGUMENTS)
    # Each of the 4 parameters also has a counter of 4 bytes.
    assert result["bytes_per_parameter"] == pytest.approx(bytes_per_parameter, rel=0.02)
    assert result["num_steps"] == 3
    assert result["num_skipped_steps"] == 0
    assert math.isfinite(result["loss"])
    assert 0 <= result["accuracy"] <= 1


def test_a_slow_fit_says_how_far_it_came():
    result = measure_quality(column="32-true", num_steps=7, max_cpu_seconds=0, **ARGUMENTS)
    assert result["num_steps"] == 1
