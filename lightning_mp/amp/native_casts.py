"""O1's casts by kernels instead of a Python mode: the cost of torch.autocast, the policies of O1.

A region of native casts is three ordinary ``torch.autocast`` contexts, so that whatever torch does
about autocast it does about O1: threads of the backward pass, both forms of activation
checkpointing, ``torch.compile``, ``custom_fwd``, and ``autocast(enabled=False)`` inside a model.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lightning_mp.amp.native_installation import INSTALLATION
from lightning_mp.amp.native_library import load_native_library
from lightning_mp.amp.opt_levels import HALF_DTYPES

__all__ = ["NativeCasts", "autocast_off", "native_disabled", "native_is_active", "native_status"]

# No build of torch has kernels for it; switched on, it makes compiled code see that O1 is on.
_GUARD_DEVICE = "ipu"
# Lowers nothing. As the dtype of an autocast that is off, it tells the kernels that O1 is on.
_MARK = torch.float64
# torch 2.10 also uses a copy that was made without gradients where gradients are wanted.
_HAS_SAFE_COPIES = torch.__version__ >= "2.11"  # compares as a version


class NativeCasts:
    """Cast by O1's policies with kernels, on one type of device.

    The first instance for a type of device installs its kernels; see
    :class:`~lightning_mp.amp.native_installation.NativeInstallation` for what that changes.

    In a region, as with ``torch.autocast``, a weight is cast once: its half copy is kept until the
    outermost region ends or an optimizer steps. A write to a weight by other means within a region
    needs ``torch.clear_autocast_cache()``. With torch 2.10 no copy is kept.
    ``torch.get_autocast_dtype`` of the CPU (or, on the CPU, of CUDA) reads ``torch.float64``
    meanwhile.

    Args:
        half_dtype: ``torch.float16`` or ``torch.bfloat16``.
        device_types: The types of device that hold the model: exactly one, see ``native_status``.

    Raises:
        ValueError: If ``half_dtype`` is not a half dtype, or not one that the device casts to.
        RuntimeError: If native casts are not available for the devices.

    Example:
        >>> if native_status(("cpu",))[0]:
        ...     with NativeCasts(torch.bfloat16, ("cpu",)).context():
        ...         assert torch.ones(3, 3).bfloat16().exp().dtype is torch.float32
    """

    def __init__(self, half_dtype: torch.dtype, device_types: tuple[str, ...]) -> None:
        if half_dtype not in HALF_DTYPES:
            raise ValueError(
                f"half_dtype = {half_dtype}; allowed: torch.float16, torch.bfloat16; "
                "choose the dtype that matrix products are to run in"
            )
        is_available, reason = native_status(device_types)
        if not is_available:
            raise RuntimeError(f"native casts on {device_types} = not available; {reason}")
        (device_type,) = set(device_types)
        if half_dtype not in _half_dtypes_of(device_type):
            raise ValueError(
                f"half_dtype = {half_dtype}; allowed on {device_type}: "
                f"{', '.join(sorted(map(str, _half_dtypes_of(device_type))))}; choose one of them"
            )
        self.device_type = device_type
        self.half_dtype = half_dtype
        self._carrier = INSTALLATION.ensure(self.device_type)

    def __reduce__(self) -> tuple[type, tuple[torch.dtype, tuple[str, ...]]]:
        """Pickle as a call, because another process has to install the kernels first."""
        return NativeCasts, (self.half_dtype, (self.device_type,))

    @contextmanager
    def context(self, *, keeps_copies: bool = True) -> Iterator[None]:
        """Cast in this region and in this thread; regions nest.

        Args:
            keeps_copies: Whether half copies of weights are kept in the region. If not, they are
                cast at each use, and no write to a weight is missed.
        """
        # Written out, because torch.compile takes torch.autocast in a with statement only.
        with (
            self._own_copies(),
            torch.autocast(_GUARD_DEVICE, dtype=torch.bfloat16),
            torch.autocast(self._carrier, dtype=_MARK, enabled=False),
            torch.autocast(
                self.device_type,
                dtype=self.half_dtype,
                cache_enabled=(
                    keeps_copies and _HAS_SAFE_COPIES and torch.is_autocast_cache_enabled()
                ),
            ),
        ):
            yield

    @contextmanager
    def _own_copies(self) -> Iterator[None]:
        """Keep copies of weights apart from those of an outer autocast to the other half dtype.

        torch looks them up by the weight alone.
        """
        is_nested = torch.is_autocast_enabled(self.device_type)
        if not is_nested or torch.get_autocast_dtype(self.device_type) == self.half_dtype:
            yield
            return
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()


def native_status(device_types: tuple[str, ...]) -> tuple[bool, str]:
    """Tell whether native casts can be used for a model; nothing is installed.

    Args:
        device_types: The types of device that hold the model.

    Returns:
        Whether they can, and why they can or not.
    """
    library, reason = load_native_library()
    if library is None:
        return False, reason
    if len(set(device_types)) != 1:
        return False, (
            f"device types = {', '.join(sorted(set(device_types))) or 'none'}; native casts take "
            "one, because the state of a second one carries their mark"
        )
    obstacle = _obstacle(device_types[0])
    return (False, obstacle) if obstacle else (True, reason)


def native_is_active() -> bool:
    """Tell whether the caller is in a region of native casts that is not disabled."""
    return any(_is_active(device_type) for device_type in INSTALLATION.carriers)


@contextmanager
def native_disabled() -> Iterator[None]:
    """Switch native casts off in this region; outside of them it does nothing."""
    with autocast_off([kind for kind in INSTALLATION.carriers if _is_active(kind)]):
        yield


@contextmanager
def autocast_off(device_types: list[str]) -> Iterator[None]:
    """Switch the autocast of some device types off in this region.

    Args:
        device_types: The types of device.
    """
    # One region within another; no ExitStack, which torch.compile cannot follow.
    if not device_types:
        yield
        return
    with torch.autocast(device_types[0], enabled=False), autocast_off(device_types[1:]):
        yield


def _is_active(device_type: str) -> bool:
    is_marked = torch.get_autocast_dtype(INSTALLATION.carriers[device_type]) is _MARK
    return is_marked and torch.is_autocast_enabled(device_type)


def _half_dtypes_of(device_type: str) -> frozenset[torch.dtype]:
    """Return those that torch.autocast takes there; with another it warns and stays off."""
    if device_type in ("cpu", "cuda"):
        return HALF_DTYPES
    supported = getattr(torch, device_type).get_amp_supported_dtype()
    return HALF_DTYPES.intersection(supported)


def _obstacle(device_type: str) -> str:
    """Say what keeps native casts from a device type; empty if nothing does."""
    if device_type in ("cpu", "cuda"):
        return ""
    if device_type != torch._C._get_privateuse1_backend_name():
        return f"device type = {device_type}; native casts have kernels for cpu, cuda, privateuse1"
    if not hasattr(getattr(torch, device_type, None), "get_amp_supported_dtype"):
        return f"device type = {device_type}; its module takes no part in torch.autocast"
    if not torch._C._dispatch_has_backend_fallback("AutocastPrivateUse1"):
        return f"device type = {device_type}; its library registers no fallback for autocast"
    return ""
