import pytest

from lightning_mp.callbacks.epoch_position import EpochPosition
from lightning_mp.callbacks.run_position import RunPosition


class Loop:
    """Counters of a training loop."""

    def __init__(self):
        self.started = 0
        self.finished = 0

    def __call__(self):
        return self.started, self.finished

    def train(self, num_batches):
        self.started += num_batches
        self.finished += num_batches


def begin(run, epoch, sizes=(4, 4, 8, 3)):
    assert run.begin_epoch(epoch)
    run.plan_epoch(list(sizes), num_batches=len(sizes), num_epoch_samples=sum(sizes))


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def run(loop):
    return RunPosition(loop)


def test_counts_trained_batches(run, loop):
    run.expect_epoch(0)
    begin(run, 0)
    seen = []
    for _ in range(4):
        loop.train(1)
        seen.append((run.num_batches_done, run.last_batch_size, run.num_samples_seen))
    assert seen == [(1, 4, 4), (2, 4, 8), (3, 8, 16), (4, 3, 19)]
    begin(run, 1, (12, 7))
    assert run.epoch == EpochPosition(1, 19)
    assert run.num_samples_seen == 19


def test_several_loaders_announce_one_epoch(run):
    begin(run, 0)
    assert not run.begin_epoch(0)


@pytest.mark.parametrize(("started", "finished"), [(1, 0), (0, 1)], ids=["failed", "skipped"])
def test_failed_and_skipped_batches_are_not_trained(run, loop, started, finished):
    begin(run, 0)
    loop.train(2)
    loop.started += started
    loop.finished += finished
    assert run.num_batches_done == 2
    assert run.num_samples_seen == 8
    begin(run, 1)
    loop.train(1)
    assert run.num_samples_seen == 12


@pytest.mark.parametrize(
    ("num_trained", "expected", "announced", "position"),
    [
        (2, EpochPosition(0, 0, 2), 0, EpochPosition(0, 0, 2)),
        (2, EpochPosition(0, 0, 2), 1, EpochPosition(1, 8)),  # the epoch was stopped early
        (4, EpochPosition(1, 19), 1, EpochPosition(1, 19)),
        (4, EpochPosition(1, 19), 0, EpochPosition(0, 0, 4)),  # its validation is to be done
    ],
)
def test_resume(run, loop, num_trained, expected, announced, position):
    begin(run, 0)
    loop.train(num_trained)
    state = run.state_dict()
    resumed_loop = Loop()
    resumed = RunPosition(resumed_loop)
    resumed.load_state_dict(state)
    assert resumed.is_restored
    assert resumed.expect_epoch(0) == expected
    assert resumed.state_dict() == state
    resumed_loop.train(num_trained)  # the loop restores its counters
    assert resumed.num_samples_seen == run.num_samples_seen
    begin(resumed, announced)
    assert not resumed.is_restored
    assert resumed.epoch == position
    assert resumed.num_samples_seen == run.num_samples_seen
    resumed_loop.train(position.num_batches_done < 4)
    assert resumed.num_batches_done == position.num_batches_done + (position.num_batches_done < 4)


def test_refuses_other_data_inside_an_epoch(run, loop):
    begin(run, 0)
    loop.train(2)
    resumed = RunPosition(Loop())
    resumed.load_state_dict(run.state_dict())
    resumed.begin_epoch(0)
    with pytest.raises(ValueError, match=r"samples per epoch = 7; .* an epoch of 19; resume with"):
        resumed.plan_epoch([4, 3], num_batches=2, num_epoch_samples=7)
