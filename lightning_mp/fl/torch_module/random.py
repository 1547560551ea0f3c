"""Random numbers: each device has a generator of its own, of the kind of the device underneath.

So a device on the CPU draws the numbers that the CPU draws from the same seed.
"""

from collections.abc import Iterable

import torch

from lightning_mp.fl.library import fl_operators
from lightning_mp.fl.torch_module.device_index import DeviceLike, device_index
from lightning_mp.fl.torch_module.devices import device_ids

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def default_generators() -> tuple[torch.Generator, ...]:
    """Return the generators of all devices, in the order of their ids."""
    return tuple(map(_generator, device_ids()))


def manual_seed(seed: int) -> None:
    """Seed the current device.

    Args:
        seed: The seed.
    """
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all devices, as ``torch.manual_seed`` does too.

    Args:
        seed: The seed.
    """
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with a random number."""
    _generator(None).seed()


def seed_all() -> None:
    """Seed all devices with one random number."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Return the seed of the current device."""
    return _generator(None).initial_seed()


def get_rng_state(device: DeviceLike = "fl") -> torch.Tensor:
    """Return the random state of a device.

    Args:
        device: A device, its name or its id; ``"fl"`` for the current one.

    Returns:
        The state, a tensor of bytes on the CPU.
    """
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "fl") -> None:
    """Set the random state of a device.

    Args:
        new_state: What ``get_rng_state`` returned.
        device: A device, its name or its id; ``"fl"`` for the current one.
    """
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the random states of all devices, in the order of their ids."""
    return [get_rng_state(index) for index in device_ids()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the random states of all devices.

    Args:
        new_states: What ``get_rng_state_all`` returned.
    """
    for index, state in zip(device_ids(), new_states, strict=True):
        set_rng_state(state, index)


def _generator(device: DeviceLike) -> torch.Generator:
    return fl_operators().default_generator(device_index(device))
