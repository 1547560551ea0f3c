"""What tells one maker of accelerators from another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["VENDORS", "Vendor"]


@dataclass(frozen=True)
class Vendor:
    """Describe how a vendor's driver and its part of torch are recognised.

    Args:
        name: As ``devices[].type`` has it.
        native_type: Its device type in torch.
        maker: Name for people.
        is_built: Says whether a torch was built with it.
        maker_id: PCI vendor id; None if its cards cannot be told by that.
        drivers: Kernel drivers that torch can work on.
        driver_files: Files that are there when the driver is loaded.
        nodes: Patterns of the device nodes that a process opens; all of them are needed.
        has_render_nodes: Whether the nodes are those that the driver makes for each card.
        variables: Environment variables that hide devices.
        missing_dtypes: Dtypes that no device of this type has.
        platform: The only ``sys.platform`` it exists on; empty for any.
    """

    name: str
    native_type: str
    maker: str
    is_built: Callable[[Any], bool]
    maker_id: int | None = None
    drivers: tuple[str, ...] = ()
    driver_files: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    has_render_nodes: bool = False
    variables: tuple[str, ...] = ()
    missing_dtypes: frozenset[str] = frozenset()
    platform: str = ""


VENDORS = (
    Vendor(
        name="cuda",
        native_type="cuda",
        maker="NVIDIA",
        is_built=lambda torch: torch.version.cuda is not None,
        maker_id=0x10DE,
        drivers=("nvidia",),
        driver_files=("proc/driver/nvidia/version",),
        nodes=("dev/nvidia[0-9]*", "dev/nvidiactl"),
        variables=("CUDA_VISIBLE_DEVICES",),
    ),
    Vendor(
        name="rocm",
        native_type="cuda",
        maker="AMD",
        is_built=lambda torch: torch.version.hip is not None,
        maker_id=0x1002,
        drivers=("amdgpu",),
        driver_files=("sys/module/amdgpu",),
        nodes=("dev/kfd",),
        variables=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    ),
    Vendor(
        name="xpu",
        native_type="xpu",
        maker="Intel",
        is_built=lambda torch: getattr(torch.version, "xpu", None) is not None,
        maker_id=0x8086,
        drivers=("i915", "xe"),
        has_render_nodes=True,
        variables=("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    ),
    Vendor(
        name="mps",
        native_type="mps",
        maker="Apple",
        is_built=lambda torch: torch.backends.mps.is_built(),
        missing_dtypes=frozenset({"float64", "complex128"}),
        platform="darwin",
    ),
    Vendor(
        name="mtia",
        native_type="mtia",
        maker="Meta",
        is_built=lambda torch: hasattr(torch, "mtia"),
    ),
    Vendor(
        name="hpu",
        native_type="hpu",
        maker="Habana",
        # The module is there once its plugin was imported.
        is_built=lambda torch: hasattr(torch, "hpu"),
        maker_id=0x1DA3,
        drivers=("habanalabs",),
        driver_files=("sys/module/habanalabs",),
        nodes=("dev/accel/accel[0-9]*",),
        variables=("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"),
    ),
)
