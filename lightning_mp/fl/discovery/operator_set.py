"""How many operators a device type can run."""

from lightning_mp.fl.discovery.system import System

__all__ = ["count_operators"]

_KEYS = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "mtia": "MTIA", "hpu": "HPU"}


def count_operators(
    native_type: str, system: System, unsupported: frozenset[str] = frozenset()
) -> int:
    """Count torch's own operators that run on a device type, by a kernel or by composition.

    Args:
        native_type: Device type in torch.
        system: Holds torch.
        unsupported: Operators that do not count, with or without overload.

    Returns:
        Number of operators, overloads counted singly.
    """
    dispatcher = system.torch._C
    key = _KEYS[native_type]
    return sum(
        name.startswith("aten::")
        and name not in unsupported
        and name.partition(".")[0] not in unsupported
        and dispatcher._dispatch_has_computed_kernel_for_dispatch_key(name, key)
        for name in dispatcher._dispatch_get_all_op_names()
    )
