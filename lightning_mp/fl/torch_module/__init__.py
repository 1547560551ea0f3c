"""``torch.fl``: what torch, and code that is written for any accelerator, ask of a device type.

It has the names of ``torch.cuda`` where there is such a thing for every device.
"""

from torch import Event

from lightning_mp.fl.torch_module.device_context import device
from lightning_mp.fl.torch_module.device_properties import DeviceProperties
from lightning_mp.fl.torch_module.devices import (
    current_device,
    device_count,
    device_ids,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    keep_backward_in_this_thread,
    set_device,
    synchronize,
)
from lightning_mp.fl.torch_module.dtypes import get_amp_supported_dtype, is_bf16_supported
from lightning_mp.fl.torch_module.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
)
from lightning_mp.fl.torch_module.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from lightning_mp.fl.torch_module.streams import (
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_ids",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "keep_backward_in_this_thread",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

# torch asks for these: checkpoints keep random states only of what is initialized, and
# torch.manual_seed seeds only what is not in a bad fork.
_initialized = True
_lazy_init = init


def _is_in_bad_fork() -> bool:
    return False
