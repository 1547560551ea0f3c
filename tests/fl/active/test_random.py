"""Random numbers: those of the CPU for the same seed, one stream of them per device."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

DRAWS = {
    "rand": lambda d: torch.rand(13, device=d),
    "randn": lambda d: torch.randn(103, device=d),
    "randint": lambda d: torch.randint(7, (13,), device=d),
    "randperm": lambda d: torch.randperm(13, device=d),
    "bernoulli": lambda d: torch.full((13,), 0.3, device=d).bernoulli(),
    "normal_": lambda d: torch.empty(13, device=d).normal_(1, 2),
    "uniform_": lambda d: torch.empty(13, device=d).uniform_(),
    "dropout": lambda d: torch.nn.functional.dropout(torch.ones(103, device=d), 0.3),
    "multinomial": lambda d: torch.ones(13, device=d).multinomial(5),
    "rand_like": lambda d: torch.rand_like(torch.ones(13, device=d)),
}


@pytest.mark.parametrize("device", ["fl:0", "fl:1", "fl:3"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_the_numbers_of_the_cpu(name: str, device: str):
    torch.manual_seed(5)
    expected = DRAWS[name]("cpu")
    torch.manual_seed(5)
    assert torch.equal(DRAWS[name](device).cpu(), expected)


def test_each_device_has_a_stream_of_its_own():
    torch.manual_seed(5)
    first = torch.rand(3, device="fl:0").cpu()
    assert torch.equal(torch.rand(3, device="fl:1").cpu(), first)
    assert not torch.equal(torch.rand(3, device="fl:0").cpu(), first)
    assert torch.equal(torch.rand(3), first)


def test_a_generator_draws_what_one_of_the_cpu_draws():
    generator = torch.Generator("fl:1").manual_seed(3)
    assert generator.device == torch.device("fl:1")
    expected = torch.rand(7, generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.rand(7, device="fl:1", generator=generator).cpu(), expected)
    copy = generator.clone_state()
    assert torch.equal(
        torch.rand(7, device="fl:1", generator=copy),
        torch.rand(7, device="fl:1", generator=generator),
    )


@pytest.mark.parametrize("device", ["cpu", "fl:1"])
def test_a_generator_of_another_device_is_refused(device: str):
    generator = torch.Generator(device)
    with pytest.raises((ValueError, RuntimeError), match="generator"):
        torch.randn(2, device="fl:0", generator=generator)
    with pytest.raises((ValueError, RuntimeError), match="generator"):
        torch.ones(2, device="fl:0").multinomial(1, generator=generator)
    with pytest.raises((ValueError, RuntimeError), match="generator"):
        torch.ones(2, device="fl:0").uniform_(generator=generator)


def test_states_are_saved_and_restored():
    state = torch.fl.get_rng_state(1)
    states = torch.fl.get_rng_state_all()
    assert len(states) == 3
    first = torch.rand(3, device="fl:1")
    torch.fl.set_rng_state(state, "fl:1")
    assert torch.equal(torch.rand(3, device="fl:1"), first)
    torch.fl.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="fl:1"), first)


def test_fork_rng_restores():
    state = torch.fl.get_rng_state(0)
    with torch.random.fork_rng(devices=[0], device_type="fl"):
        torch.rand(3, device="fl:0")
        assert not torch.equal(torch.fl.get_rng_state(0), state)
    assert torch.equal(torch.fl.get_rng_state(0), state)


def test_seeds_by_device():
    torch.fl.manual_seed(11)
    assert torch.fl.initial_seed() == 11
    with torch.fl.device(1):
        assert torch.fl.initial_seed() == 0
    torch.fl.manual_seed_all(12)
    assert [generator.initial_seed() for generator in torch.fl.default_generators()] == [12] * 3
    torch.fl.seed()
    assert torch.fl.initial_seed() != 12
    torch.fl.seed_all()
    assert len({generator.initial_seed() for generator in torch.fl.default_generators()}) == 1


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_draws_the_same_numbers_again(use_reentrant: bool):
    gradients = []
    for device in ("cpu", "fl:0"):
        torch.manual_seed(2)
        x = torch.ones(103, device=device, requires_grad=True)
        dropped = checkpoint(
            lambda x: torch.nn.functional.dropout(x.sin(), 0.5).exp(),
            x,
            use_reentrant=use_reentrant,
        )
        dropped.sum().backward()
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients)
