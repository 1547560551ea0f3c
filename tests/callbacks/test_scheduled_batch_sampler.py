from itertools import chain

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from lightning_mp.callbacks.batch_size_plan import BatchSizeRamp, epoch_batch_sizes
from lightning_mp.callbacks.epoch_position import EpochPosition
from lightning_mp.callbacks.scheduled_batch_sampler import ScheduledBatchSampler

DATASET = TensorDataset(torch.arange(103))
RAMP = BatchSizeRamp(4, 20, 150, 4)


def make_sampler(num_samples=103, **kwargs):
    return ScheduledBatchSampler(RandomSampler(range(num_samples)), RAMP, **kwargs)


def run_epochs(batch_sampler, num_epochs, workers=0):
    """A hand-written loop over three epochs."""
    loader = DataLoader(
        DATASET,
        batch_sampler=batch_sampler,
        num_workers=workers,
        collate_fn=list,
    )
    epochs = []
    for epoch in range(batch_sampler.position.epoch, num_epochs):
        batch_sampler.set_epoch(epoch)
        batches = []
        for batch in loader:
            batches.append([int(index) for (index,) in batch])
            batch_sampler.count_batch()
        epochs.append(batches)
    return epochs


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_hand_written_loop(workers):
    batch_sampler = make_sampler(seed=5)
    epochs = run_epochs(batch_sampler, 3, workers)
    seen = 0
    for batches in epochs:
        sizes = epoch_batch_sizes(RAMP, num_epoch_samples=103, num_samples_seen=seen)
        assert [len(batch) for batch in batches] == sizes
        assert sorted(chain.from_iterable(batches)) == list(range(103))
        seen += 103
    assert epochs[0][0] != epochs[1][0]
    assert batch_sampler.num_samples_seen == 309


@pytest.mark.parametrize("stop", [1, 16, 17, 18, 23, 24, 29, 30])
def test_state_resumes_at_the_next_batch(stop):
    whole = list(chain.from_iterable(run_epochs(make_sampler(seed=5), 3)))
    first = make_sampler(seed=5)
    seen = []
    for epoch in range(3):
        first.set_epoch(epoch)
        for batch in first:
            if len(seen) == stop:
                break
            seen.append(batch)
            first.count_batch()
        if len(seen) == stop:
            break
    second = make_sampler(seed=99)
    second.load_state_dict(first.state_dict())
    rest = list(chain.from_iterable(run_epochs(second, 3)))
    assert seen + rest == whole
    assert second.num_samples_seen == 309


def test_length_counts_the_whole_epoch():
    batch_sampler = make_sampler()
    batch_sampler.start_epoch(EpochPosition(0, 0, 5))
    assert len(batch_sampler) == 17
    assert len(list(batch_sampler)) == 12


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 3]), (True, [4])])
def test_drop_last(drop_last, sizes):
    assert [len(batch) for batch in make_sampler(7, drop_last=drop_last)] == sizes


def test_iterator_keeps_the_position_it_was_made_at():
    batch_sampler = make_sampler()
    iterator = iter(batch_sampler)
    expected = list(batch_sampler)
    batch_sampler.start_epoch(EpochPosition(1, 103))
    assert list(iterator) == expected


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_the_global_batch(shuffle):
    ranks = []
    for rank in range(2):
        sampler = DistributedSampler(DATASET, num_replicas=2, rank=rank, shuffle=shuffle)
        ranks.append(list(ScheduledBatchSampler(sampler, RAMP, world_size=2, rank=rank)))
    sizes = [len(a) + len(b) for a, b in zip(*ranks, strict=True)]
    assert sizes == epoch_batch_sizes(RAMP, num_epoch_samples=104)
    indices = list(chain.from_iterable(chain.from_iterable(ranks)))
    assert set(indices) == set(range(103))
    assert len(indices) == 104


def test_global_size_must_be_shared_evenly():
    batch_sampler = make_sampler(world_size=3)
    with pytest.raises(ValueError, match=r"global batch size = 4 .* 3 ranks"):
        list(batch_sampler)


def test_cycle_starts_over_with_a_new_order():
    batch_sampler = make_sampler(13, num_batches=lambda: 9)
    batches = list(batch_sampler)
    assert [len(batch) for batch in batches] == [4, 4, 4, 1, 4, 4, 4, 1, 4]
    assert len(batch_sampler) == 9
    passes = [list(chain.from_iterable(batches[:4])), list(chain.from_iterable(batches[4:8]))]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(13))
    assert passes[0] != passes[1]


@pytest.mark.parametrize("done", range(10))
def test_cycle_resumes(done):
    batch_sampler = make_sampler(13, num_batches=lambda: 9)
    whole = list(batch_sampler)
    batch_sampler.start_epoch(EpochPosition(0, 0, done))
    assert list(batch_sampler) == whole[done:]


def test_single_pass_sizes_ignore_the_cycle():
    batch_sampler = make_sampler(13, num_batches=lambda: 9)
    assert batch_sampler.batch_sizes(single_pass=True) == [4, 4, 4, 1]


def test_announcing_the_same_epoch_again_changes_nothing():
    batch_sampler = ScheduledBatchSampler(SequentialSampler(range(7)), RAMP)
    batch_sampler.count_batch()
    batch_sampler.set_epoch(0)
    assert batch_sampler.position == EpochPosition(0, 0, 1)
    batch_sampler.sampler.set_epoch(1)
    assert batch_sampler.position == EpochPosition(1, 4, 0)
