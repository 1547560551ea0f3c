"""What a list of logical devices has to fulfil before one of them is set up."""

from collections.abc import Sequence
from typing import Any

import torch

from lightning_mp.fl.device_spec import DeviceSpec

__all__ = ["MAX_DEVICES", "check_specs"]

# kMaxDevices of csrc/fl/runtime/device.h.
MAX_DEVICES = 16
_LARGEST_ALIGNMENT = 4096


def check_specs(specs: Sequence[DeviceSpec]) -> None:
    """Refuse devices that cannot be set up.

    Args:
        specs: The devices.

    Raises:
        ValueError: If there is none, or a field has a value that is not allowed.
        RuntimeError: If torch cannot reach the device underneath.
    """
    if not specs:
        raise ValueError("specs = []; one device or more is allowed; pass a DeviceSpec")
    indices = [spec.index for spec in specs]
    if len(set(indices)) < len(indices):
        raise ValueError(f"ids of devices = {indices}; each id once is allowed; renumber them")
    for spec in specs:
        _check_fields(spec)
        _check_native_device(spec)


def _check_fields(spec: DeviceSpec) -> None:
    alignments = [64 << step for step in range(7) if 64 << step <= _LARGEST_ALIGNMENT]
    checks: list[tuple[str, Any, bool, str]] = [
        ("index", spec.index, 0 <= spec.index < MAX_DEVICES, f"0 to {MAX_DEVICES - 1}"),
        ("native_index", spec.native_index, spec.native_index >= 0, "0 or more"),
        ("memory_bytes", spec.memory_bytes, spec.memory_bytes >= 0, "0 or more"),
        ("memory_fraction", spec.memory_fraction, 0 < spec.memory_fraction <= 1, "above 0, to 1"),
        ("alignment_bytes", spec.alignment_bytes, spec.alignment_bytes in alignments,
         f"a power of two from 64 to {_LARGEST_ALIGNMENT}"),
        ("slowdown", spec.slowdown, spec.slowdown >= 1, "1 or more"),
        ("dtypes", spec.dtypes, spec.dtypes is None or len(spec.dtypes) > 0, "None or some dtypes"),
    ]  # fmt: skip
    for field, value, is_allowed, allowed in checks:
        if not is_allowed:
            raise ValueError(
                f"{field} of fl:{spec.index} = {value}; {allowed} is allowed; change the DeviceSpec"
            )


def _check_native_device(spec: DeviceSpec) -> None:
    if spec.native_type == "cpu":
        return
    remedy = "leave the device out"
    try:
        native = torch.device(spec.native_type, spec.native_index)
    except RuntimeError as error:
        raise ValueError(
            f"native_type of fl:{spec.index} = {spec.native_type!r}; device types of torch are "
            f"allowed; {remedy}"
        ) from error
    if native.type == torch._C._get_privateuse1_backend_name():
        raise ValueError(
            f"native_type of fl:{spec.index} = {spec.native_type!r}; this device uses the place in "
            f"torch that fl itself takes; {remedy}"
        )
    module = getattr(torch, native.type, None)
    num_devices = module.device_count() if module is not None and module.is_available() else 0
    if spec.native_index >= num_devices:
        raise RuntimeError(
            f"device under fl:{spec.index} = {native}; torch finds {num_devices} of this type; "
            f"{remedy}"
        )
