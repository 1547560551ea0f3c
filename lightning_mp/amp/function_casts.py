"""The casts of O1 as one object, whichever implementation runs them.

The kernels of :mod:`lightning_mp.amp.native_casts` cost what torch.autocast costs;
:class:`~lightning_mp.amp.function_cast_mode.FunctionCastMode` does the same in Python, on every
device and without a compiler.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, get_args

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import _get_current_function_mode_stack
from torch.utils.hooks import RemovableHandle

from lightning_mp.amp.cast_mark import casts_are_off, casts_off, casts_on
from lightning_mp.amp.function_cast_mode import FunctionCastMode
from lightning_mp.amp.native_casts import (
    NativeCasts,
    autocast_off,
    native_disabled,
    native_is_active,
    native_status,
)
from lightning_mp.amp.native_installation import INSTALLATION
from lightning_mp.amp.native_overlay_mode import NativeOverlayMode
from lightning_mp.amp.policy_table import POLICIES

__all__ = [
    "FunctionCasts",
    "Implementation",
    "active_half_dtype",
    "active_mode",
    "casts_are_active",
    "clear_cast_cache",
    "default_device_type",
    "disable_casts",
]

Implementation = Literal["auto", "native", "python"]


class FunctionCasts:
    """Cast the arguments of torch functions by the policies of O1, in regions of code.

    Args:
        half_dtype: ``torch.float16`` or ``torch.bfloat16``.
        allow_banned: Run banned functions in FP32 instead of refusing half tensors.
        implementation: ``"native"``, ``"python"``, or ``"auto"``: native where it is available.
        device_types: Types of the devices that hold the model; the accelerator's by default, the
            CPU's if there is none. Only the choice of the implementation depends on them.
        is_lasting: Whether regions last longer than a step. The kernels keep no half copies of
            weights then, because they do not notice when somebody writes to a weight.

    Raises:
        ValueError: An argument is not one of those allowed.
        RuntimeError: ``"native"`` was asked for and is not available; the message says why.

    Example:
        >>> casts = FunctionCasts(torch.bfloat16, implementation="python")
        >>> with casts.context():
        ...     torch.nn.Linear(7, 3)(torch.randn(5, 7)).dtype
        torch.bfloat16
    """

    def __init__(
        self,
        half_dtype: torch.dtype,
        *,
        allow_banned: bool = False,
        implementation: Implementation = "auto",
        device_types: Sequence[str] | None = None,
        is_lasting: bool = False,
    ) -> None:
        if implementation not in get_args(Implementation):
            raise ValueError(
                f"implementation = {implementation!r}; allowed: 'auto', 'native', 'python'; "
                "'auto' takes the kernels where they are available"
            )
        self.half_dtype = half_dtype
        self.allow_banned = allow_banned
        self._is_lasting = is_lasting
        self._step_hooks: set[RemovableHandle] = set()
        self.device_types = tuple(dict.fromkeys(device_types or (default_device_type(),)))
        self._native: NativeCasts | None = None
        self._mode = FunctionCastMode(half_dtype, allow_banned=allow_banned)
        self.reason = "the Python mode was asked for"
        if implementation != "python":
            is_available, self.reason = native_status(self.device_types)
            if is_available or implementation == "native":
                self._native = NativeCasts(half_dtype, self.device_types)
                self._mode = NativeOverlayMode(half_dtype, allow_banned=allow_banned)

    @property
    def implementation(self) -> Literal["native", "python"]:
        """The implementation in use; ``reason`` says why."""
        return "python" if self._native is None else "native"

    @contextmanager
    def context(self) -> Iterator[None]:
        """Cast in this region.

        Inside a region of the same object it does nothing; inside torch.autocast, the casts of O1
        take its place. The end of the outermost region, also by an exception, drops the half copies
        of weights.
        """
        if self.is_active():
            yield
            return
        native = self._native
        with self._python_region() if native is None else self._native_region(native):
            yield

    def is_active(self) -> bool:
        """Tell whether the caller is in a region of this object in which casts are on."""
        if self._native is None:
            return not casts_are_off() and self._mode in _get_current_function_mode_stack()
        device_type = self._native.device_type
        return native_is_active() and torch.get_autocast_dtype(device_type) == self.half_dtype

    def clear_cache(self) -> None:
        """Drop the half copies of weights, after weights were changed by uncommon means."""
        self._mode.cache.clear()
        if self._native is not None:
            torch.clear_autocast_cache()

    def abandon(self) -> None:
        """Take back what regions that cannot be ended do outside of their threads, which are dead.

        The end of a region changes the state of the thread that it happens in.
        """
        while self._step_hooks:
            self._step_hooks.pop().remove()
        self._mode.cache.clear()

    @contextmanager
    def _python_region(self) -> Iterator[None]:
        # Autocast for a device without kernels: modules that ask whether mixed precision is on,
        # as recurrent ones do before they refuse a mixture of dtypes, are told yes.
        switch_on = casts_on() if casts_are_off() else nullcontext()
        with (
            switch_on,
            autocast_off(list(filter(_has_autocast_on, self.device_types))),
            torch.autocast("ipu", dtype=torch.bfloat16),
            self._cached(),
            self._mode,
        ):
            yield

    @contextmanager
    def _native_region(self, native: NativeCasts) -> Iterator[None]:
        # On the CPU the native casts run what is banned in FP32; on others torch refuses it.
        is_ban_lifted = self.allow_banned and native.device_type != "cpu"
        has_overlay = is_ban_lifted or bool(POLICIES.user)
        overlay = self._mode if has_overlay else nullcontext()
        _NATIVE.modes = [*_native_modes(), self._mode]
        try:
            with native.context(keeps_copies=not self._is_lasting), self._cached(), overlay:
                yield
        finally:
            _NATIVE.modes = _NATIVE.modes[:-1]

    @contextmanager
    def _cached(self) -> Iterator[None]:
        hook = register_optimizer_step_post_hook(self.drop_casts)
        self._step_hooks.add(hook)
        try:
            yield
        finally:
            hook.remove()
            self._step_hooks.discard(hook)
            self._mode.cache.clear()

    def drop_casts(self, *_: object) -> None:
        """Forget the casts of weights: a step hook, which the step of any optimizer calls."""
        self._mode.cache.clear()


def casts_are_active() -> bool:
    """Tell whether O1 casts the torch calls of the caller."""
    return native_is_active() or _python_mode() is not None


def active_mode() -> FunctionCastMode | None:
    """Return the mode that casts the torch calls of the caller, if there is one.

    Under native casts it is the mode that would run what the kernels leave to Python; threads of
    the backward pass know of none.
    """
    if native_is_active():
        return _native_modes()[-1] if _native_modes() else None
    return _python_mode()


def active_half_dtype() -> torch.dtype | None:
    """Return the dtype that the torch calls of the caller are cast to, if they are."""
    mode = active_mode()
    if mode is not None:
        return mode.half_dtype
    if native_is_active():
        for device_type in filter(torch.is_autocast_enabled, INSTALLATION.carriers):
            return torch.get_autocast_dtype(device_type)
    return None


@contextmanager
def disable_casts() -> Iterator[None]:
    """Switch the casts of O1 off in this region; outside of them it does nothing.

    A block checkpointed in such a region is computed again without casts too. The autocast of the
    CPU is off in the region as well.

    Example:
        >>> with FunctionCasts(torch.bfloat16).context(), disable_casts():
        ...     torch.nn.Linear(7, 3)(torch.randn(5, 7)).dtype
        torch.float32
    """
    if not casts_are_active():
        yield
        return
    with native_disabled(), casts_off():
        yield


def clear_cast_cache() -> None:
    """Drop the half copies of weights of all regions that the caller is in.

    Call it after writing to a weight inside a region by other means than an optimizer's step, an
    in-place operation or ``.data``.
    """
    for mode in _get_current_function_mode_stack():
        if isinstance(mode, FunctionCastMode):
            mode.cache.clear()
    if native_is_active():
        for mode in _native_modes():
            mode.cache.clear()
        torch.clear_autocast_cache()


def default_device_type() -> str:
    """Return the accelerator's type of device, the CPU's if there is none."""
    # A build for an accelerator may run where there is none.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def _python_mode() -> FunctionCastMode | None:
    if casts_are_off():
        return None
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, FunctionCastMode) and not isinstance(mode, NativeOverlayMode):
            return mode
    return None


# The modes of the regions of native casts that a thread is in: their caches are in use even where
# the modes need not be on.
_NATIVE = threading.local()


def _native_modes() -> list[FunctionCastMode]:
    return getattr(_NATIVE, "modes", [])


def _has_autocast_on(device_type: str) -> bool:
    """Tell whether an autocast around a region would cast what the mode has cast already."""
    is_known = torch.amp.is_autocast_available(device_type)
    return is_known and torch.is_autocast_enabled(device_type)
