"""A machine made of files and a torch made of answers, for tests of what fl finds."""

from pathlib import Path
from types import SimpleNamespace

from lightning_mp.fl.discovery import System

MAKERS = {"cuda": 0x10DE, "rocm": 0x1002, "xpu": 0x8086, "hpu": 0x1DA3}
OPERATORS = ("aten::add.Tensor", "aten::add.out", "aten::tril", "prims::add")


class Backend:
    """What ``torch.cuda`` and its kind answer."""

    def __init__(self, *devices, is_available=True, error=None):
        self.devices = devices
        self.available = is_available
        self.error = error
        self.num_questions = 0

    def is_available(self):
        self.num_questions += 1
        if self.error is not None:
            raise self.error
        return self.available

    def device_count(self):
        return len(self.devices)

    def get_device_properties(self, index):
        properties = self.devices[index]
        if isinstance(properties, Exception):
            raise properties
        return properties


def card_properties(number=0, **given):
    """Properties of a card as torch.cuda gives them."""
    return SimpleNamespace(
        **{
            "name": f"Card {number}",
            "total_memory": 7 * 2**30,
            "major": 9,
            "minor": 0,
            "multi_processor_count": 103,
            "uuid": f"{number:08x}-1111-2222-3333-444444444444",
            "pci_domain_id": 0,
            "pci_bus_id": 0x3B + number,
            "pci_device_id": 0,
            **given,
        }
    )


def fake_torch(*built, **backends):
    """A torch with the parts ``built`` and the answers of ``backends``."""
    versions = {name: "13.0" if name in built else None for name in ("cuda", "hip", "xpu")}
    return SimpleNamespace(
        __version__="2.99.0",
        version=SimpleNamespace(**versions),
        backends=SimpleNamespace(mps=SimpleNamespace(is_built=lambda: "mps" in built)),
        _C=SimpleNamespace(
            _dispatch_get_all_op_names=lambda: list(OPERATORS),
            _dispatch_has_computed_kernel_for_dispatch_key=lambda name, key: (
                key == "CPU" or name != "aten::tril"
            ),
        ),
        **backends,
    )


class Machine:
    """Files below a folder that stands for ``/``."""

    def __init__(self, folder: Path, cores=(0, 1, 2, 3, 4, 5, 6)):
        self.root = folder / "dev" / "root"
        self.home = folder / "home"
        self.root.mkdir(parents=True)
        self.cores = cores
        self.file("proc/cpuinfo", "processor\t: 0\nmodel name\t: Old Abacus 7\n")
        self.file("proc/meminfo", "MemTotal:       7168 kB\nMemFree: 1 kB\n")
        self.file("etc/machine-id", "0123456789abcdef\n")

    def file(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def card(self, vendor, address="0000:3b:00.0", driver="", kind="0x030200", node=""):
        folder = f"sys/bus/pci/devices/{address}"
        self.file(f"{folder}/vendor", f"0x{MAKERS[vendor]:04x}\n")
        self.file(f"{folder}/class", f"{kind}\n")
        if driver:
            drivers = self.root / "sys/bus/pci/drivers" / driver
            drivers.mkdir(parents=True, exist_ok=True)
            (self.root / folder / "driver").symlink_to(drivers)
        if node:
            self.file(f"{folder}/drm/{node}/dev")

    def system(self, torch=None, **given):
        return System(
            **{
                "root": self.root,
                "torch": torch or fake_torch(),
                "environ": {},
                "may_use": lambda path: True,
                "cores": self.cores,
                "platform": "linux",
                "host_name": "alpha.cluster",
                "folder": self.home / ".torch_fl",
                **given,
            }
        )
