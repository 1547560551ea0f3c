from itertools import islice

import pytest

from lightning_mp.callbacks.batch_size_plan import (
    BatchSizeRamp,
    check_world_size,
    epoch_batch_sizes,
    iterate_batch_sizes,
    limit_num_batches,
    planned_steps,
    slice_epoch,
)


def megatron_batch_size(ramp, consumed):
    """megatron/core/num_microbatches_calculator.py, in its own floating point."""
    if consumed > ramp.num_samples:
        return ramp.end_global_batch_size
    growth = ramp.end_global_batch_size - ramp.start_global_batch_size
    samples_per_increment = ramp.num_samples / (growth // ramp.increment)
    steps = int(consumed / samples_per_increment)
    return ramp.start_global_batch_size + steps * ramp.increment


@pytest.mark.parametrize(
    ("ramp", "expected"),
    [
        (BatchSizeRamp(4, 20, 100, 4), {0: 4, 24: 4, 25: 8, 50: 12, 99: 16, 100: 20, 10**12: 20}),
        (BatchSizeRamp(3, 10, 7, 7), {0: 3, 6: 3, 7: 10}),
        (BatchSizeRamp(5, 5, 13), {0: 5, 12: 5, 13: 5, 1000: 5}),
        (BatchSizeRamp(1, 4, 1), {0: 1, 1: 4}),
        (BatchSizeRamp(16, 19, 10), {0: 16, 3: 16, 4: 17, 6: 17, 7: 18, 9: 18, 10: 19}),
    ],
)
def test_ramp_sizes(ramp, expected):
    assert {seen: ramp(seen) for seen in expected} == expected


@pytest.mark.parametrize("ramp", [BatchSizeRamp(32, 256, 1024, 32), BatchSizeRamp(8, 24, 128, 2)])
def test_ramp_agrees_with_megatron(ramp):
    assert all(ramp(seen) == megatron_batch_size(ramp, seen) for seen in range(2000))


def test_ramp_never_shrinks_and_is_exact_far_out():
    ramp = BatchSizeRamp(1, 1001, 3 * 10**17)
    seen = [10**17 - 1, 10**17, 2 * 10**17, 3 * 10**17 - 1, 3 * 10**17]
    assert [ramp(count) for count in seen] == [334, 334, 667, 1000, 1001]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((0, 8, 10), ValueError, "start_global_batch_size = 0; at least 1"),
        ((4, -8, 10), ValueError, "end_global_batch_size = -8; at least 1"),
        ((4, 8, 0), ValueError, "num_samples = 0; at least 1"),
        ((4, 8, 10, 0), ValueError, "increment = 0; at least 1"),
        ((4.0, 8, 10), TypeError, r"start_global_batch_size = 4\.0; an integer"),
        ((True, 8, 10), TypeError, "start_global_batch_size = True; an integer"),
        ((4, 8, "10"), TypeError, "num_samples = '10'; an integer"),
        ((8, 4, 10), ValueError, "end_global_batch_size = 4 is smaller than .* = 8.*swap"),
        ((4, 16, 10, 5), ValueError, "increment = 5 does not divide .* 12 .*; use 4 or 6"),
        ((4, 16, 10, 100), ValueError, "increment = 100 .*; use 12$"),
    ],
)
def test_ramp_refuses(arguments, error, match):
    with pytest.raises(error, match=match):
        BatchSizeRamp(*arguments)


@pytest.mark.parametrize(
    ("size", "world_size", "nearest"),
    [(10, 4, "use 8 or 12"), (3, 4, "use 4"), (101, 7, "use 98 or 105")],
)
def test_world_size_must_divide(size, world_size, nearest):
    match = f"start_global_batch_size = {size} .* {world_size} ranks; .*multiple.*; {nearest}$"
    with pytest.raises(ValueError, match=match):
        check_world_size(world_size, start_global_batch_size=size)


def test_world_size_divides():
    check_world_size(4, start_global_batch_size=8, end_global_batch_size=100, increment=4)


def test_iterate_follows_the_samples():
    assert list(islice(iterate_batch_sizes(BatchSizeRamp(2, 6, 10, 2), 3), 6)) == [2, 4, 4, 6, 6, 6]


def test_iterate_refuses_an_empty_batch():
    with pytest.raises(ValueError, match=r"schedule\(7\) = 0; .*at least 1"):
        next(iterate_batch_sizes(lambda seen: 0, 7))


@pytest.mark.parametrize(
    ("num_samples", "options", "expected"),
    [
        (7, {}, [(0, 0, 3), (0, 3, 6), (0, 6, 7)]),
        (7, {"drop_last": True}, [(0, 0, 3), (0, 3, 6)]),
        (6, {"drop_last": True}, [(0, 0, 3), (0, 3, 6)]),
        (0, {}, []),
        (4, {"num_batches": 5}, [(0, 0, 3), (0, 3, 4), (1, 0, 3), (1, 3, 4), (2, 0, 3)]),
        (4, {"num_batches": 3, "drop_last": True}, [(0, 0, 3), (1, 0, 3), (2, 0, 3)]),
        (4, {"num_batches": 1}, [(0, 0, 3)]),
    ],
)
def test_slice_epoch(num_samples, options, expected):
    assert list(slice_epoch([3] * 9, num_samples, **options)) == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_slice_epoch_cannot_cycle_too_little_data(drop_last):
    with pytest.raises(ValueError, match=r"batch size = 3 .* only [02] samples"):
        list(slice_epoch([3] * 4, 2 if drop_last else 0, drop_last=drop_last, num_batches=4))


@pytest.mark.parametrize("num_samples", [1, 7, 13, 103])
@pytest.mark.parametrize("seen", [0, 5, 149, 1000])
def test_epoch_sizes_cover_the_epoch(num_samples, seen):
    ramp = BatchSizeRamp(4, 20, 150, 4)
    sizes = epoch_batch_sizes(ramp, num_epoch_samples=num_samples, num_samples_seen=seen)
    kept = epoch_batch_sizes(
        ramp, num_epoch_samples=num_samples, num_samples_seen=seen, drop_last=True
    )
    assert sum(sizes) == num_samples
    assert sizes[:-1] == kept[: len(sizes) - 1]
    for index, size in enumerate(sizes[:-1]):
        assert size == ramp(seen + sum(sizes[:index]))


@pytest.mark.parametrize(
    ("num_batches", "limit", "expected"),
    [(17, 5, 5), (3, 5, 3), (17, 0, 0), (17, 1.0, 17), (17, 0.5, 8), (6, 0.1, 1), (0, 0.5, 0)],
)
def test_limit(num_batches, limit, expected):
    assert limit_num_batches(num_batches, limit) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 17 + 7 + 6),
        ({"num_epochs": 100}, 17 + 7 + 98 * 6),
        ({"drop_last": True}, 16 + 6 + 5),
        ({"limit": 5}, 15),
        ({"num_epochs": 0}, 0),
        ({"num_epoch_samples": 1, "num_epochs": 13}, 13),
    ],
)
@pytest.mark.parametrize("constant_from", [None, 150])
def test_planned_steps(options, expected, constant_from):
    options = {"num_epochs": 3, "num_epoch_samples": 103, **options}
    ramp = BatchSizeRamp(4, 20, 150, 4)
    assert planned_steps(ramp, constant_from=constant_from, **options) == expected


def test_planned_steps_counts_constant_epochs_once():
    calls = []
    ramp = BatchSizeRamp(4, 20, 150, 4)

    def schedule(seen):
        calls.append(seen)
        return ramp(seen)

    steps = planned_steps(schedule, num_epochs=10**6, num_epoch_samples=103, constant_from=150)
    assert steps == 17 + 7 + (10**6 - 2) * 6
    assert len(calls) < 50


def test_planned_steps_refuses_an_epoch_without_batches():
    with pytest.raises(
        ValueError, match=r"batch size = 20 in epoch 2; .* 13 samples .* drop_last=True"
    ):
        planned_steps(
            BatchSizeRamp(4, 20, 15, 16), num_epochs=3, num_epoch_samples=13, drop_last=True
        )
