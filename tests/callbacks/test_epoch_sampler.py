import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lightning_mp.callbacks.epoch_sampler import EpochSampler

DATA = range(103)
DATASET = TensorDataset(torch.arange(103))


class Shuffled:
    """A user's sampler that draws from a global random generator."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 13

    def __iter__(self):
        return iter(self.draw())


SAMPLERS = {
    "random": lambda: RandomSampler(DATA),
    "replacement": lambda: RandomSampler(DATA, replacement=True, num_samples=57),
    "generator": lambda: RandomSampler(DATA, generator=torch.Generator().manual_seed(3)),
    "weighted": lambda: WeightedRandomSampler([1.0] * 50 + [2.0] * 53, 77),
    "subset": lambda: SubsetRandomSampler(range(5, 40)),
    "distributed": lambda: DistributedSampler(DATASET, num_replicas=2, rank=1),
    "user torch": lambda: Shuffled(lambda: torch.randperm(13).tolist()),
    "user numpy": lambda: Shuffled(lambda: np.random.permutation(13).tolist()),
    "user python": lambda: Shuffled(lambda: random.sample(range(13), 13)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_order_depends_on_seed_and_epoch_only(name):
    torch.manual_seed(1)
    first = EpochSampler(SAMPLERS[name](), seed=7)
    orders = [first.draw(epoch) for epoch in range(3)]
    torch.manual_seed(2)
    random.seed(2)
    again = EpochSampler(SAMPLERS[name](), seed=7)
    assert [again.draw(epoch) for epoch in (2, 0, 1)] == [orders[2], orders[0], orders[1]]
    assert orders[0] != orders[1] != orders[2]
    assert all(len(order) == len(first) for order in orders)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "distributed"])
def test_order_changes_with_seed_and_pass(name):
    order = EpochSampler(SAMPLERS[name](), seed=7).draw(0)
    assert EpochSampler(SAMPLERS[name](), seed=8).draw(0) != order
    assert EpochSampler(SAMPLERS[name](), seed=7).draw(0, pass_index=1) != order


@pytest.mark.parametrize(
    ("name", "is_equal"),
    [("random", False), ("weighted", False), ("subset", False), ("user torch", True)],
)
def test_ranks(name, is_equal):
    orders = [EpochSampler(SAMPLERS[name](), seed=7, rank=rank).draw(0) for rank in range(2)]
    assert (orders[0] == orders[1]) is is_equal


def test_sequential_stays_sequential():
    assert EpochSampler(SequentialSampler(DATA)).draw(5) == list(DATA)


def test_random_states_and_generators_are_left_alone():
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(DATA, generator=generator)
    before = torch.get_rng_state(), generator.get_state(), random.getstate()
    numpy_before = np.random.get_state(legacy=False)
    EpochSampler(sampler).draw(0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])
    assert random.getstate() == before[2]
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_before)
    assert sampler.generator is generator


def test_states_are_restored_after_an_error():
    def fail():
        torch.rand(3)
        raise KeyError("broken sampler")

    before = torch.get_rng_state()
    with pytest.raises(KeyError, match="broken sampler"):
        EpochSampler(Shuffled(fail)).draw(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_iteration_follows_set_epoch():
    announced = []
    sampler = EpochSampler(RandomSampler(DATA), on_epoch=announced.append)
    sampler.set_epoch(4)
    assert list(sampler) == sampler.draw(4) != sampler.draw(0)
    assert announced == [4]


def test_refuses_a_sampler_without_length():
    with pytest.raises(TypeError, match=r"sampler = generator has no length; .*__len__"):
        EpochSampler(index for index in DATA)


def test_refuses_a_sampler_that_is_too_short():
    with pytest.raises(RuntimeError, match="Shuffled gave 2 indices; its length says 13"):
        EpochSampler(Shuffled(lambda: [0, 1])).draw(0)
