"""Every verdict on an accelerator, on machines made of files."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from support.fl_machine import Backend, Machine, card_properties, fake_torch

from lightning_mp.fl.config import DeviceConfig
from lightning_mp.fl.discovery import AbsenceReason
from lightning_mp.fl.discovery.accelerator_prober import AcceleratorProber
from lightning_mp.fl.discovery.vendor import VENDORS

DESCRIPTIONS = {vendor.name: vendor for vendor in VENDORS}


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def probe(vendor, system, entry=None):
    log = []
    prober = AcceleratorProber(DESCRIPTIONS[vendor])
    return prober.probe([] if entry is None else [entry], system, log.append), log


def with_nvidia(machine, *, nodes=True):
    machine.card("cuda", driver="nvidia")
    machine.file("proc/driver/nvidia/version", "NVRM version: 999.9")
    if nodes:
        machine.file("dev/nvidia0")
        machine.file("dev/nvidiactl")


def denied(path):
    return path.name != "nvidia0"


WARNING = "CUDA initialization: The NVIDIA driver on your system is too old"


class WarningBackend(Backend):
    def is_available(self):
        warnings.warn(f"{WARNING}\nUpdate it.", stacklevel=1)
        return False


# what the machine has, torch, further settings of the system, reason, a part of the detail
VERDICTS = {
    "no driver": (
        lambda m: m.card("cuda"),
        fake_torch("cuda", cuda=Backend()),
        {},
        AbsenceReason.NO_DRIVER,
        "1 NVIDIA card on the PCI bus, kernel driver nvidia is not loaded; install or load it",
    ),
    "another driver": (
        lambda m: m.card("cuda", driver="nouveau"),
        fake_torch("cuda", cuda=Backend()),
        {},
        AbsenceReason.NO_DRIVER,
        "kernel driver nvidia is not loaded, nouveau instead",
    ),
    "no node": (
        lambda m: with_nvidia(m, nodes=False),
        fake_torch("cuda", cuda=Backend()),
        {},
        AbsenceReason.NO_DEVICE_NODE,
        "/dev/nvidia[0-9]* and /dev/nvidiactl is missing; start the container with the devices",
    ),
    "no permission": (
        with_nvidia,
        fake_torch("cuda", cuda=Backend()),
        {"may_use": denied},
        AbsenceReason.NO_PERMISSION,
        "this user may not open /dev/nvidia0; ask to be added to the group",
    ),
    "torch for CPUs": (
        with_nvidia,
        fake_torch(cuda=Backend()),
        {},
        AbsenceReason.NOT_IN_THIS_TORCH,
        "torch 2.99.0 has no cuda; install a build of torch that has it",
    ),
    "no driver and torch for CPUs": (
        lambda m: m.card("cuda"),
        fake_torch(),
        {},
        AbsenceReason.NO_DRIVER,
        "install or load it; also: torch 2.99.0 has no cuda",
    ),
    "hidden": (
        with_nvidia,
        fake_torch("cuda", cuda=Backend()),
        {"environ": {"CUDA_VISIBLE_DEVICES": ""}},
        AbsenceReason.HIDDEN,
        "CUDA_VISIBLE_DEVICES=''; unset it to see all",
    ),
    "too old": (
        with_nvidia,
        fake_torch("cuda", cuda=WarningBackend()),
        {},
        AbsenceReason.NOT_ANSWERING,
        f"torch 2.99.0 finds no device ({WARNING}); the driver may be too old",
    ),
    "torch raises": (
        with_nvidia,
        fake_torch("cuda", cuda=Backend(error=RuntimeError("unknown error 999\nmore"))),
        {},
        AbsenceReason.QUERY_FAILED,
        "RuntimeError: unknown error 999",
    ),
    "every device raises": (
        with_nvidia,
        fake_torch("cuda", cuda=Backend(RuntimeError("ECC"), RuntimeError("bus"))),
        {},
        AbsenceReason.QUERY_FAILED,
        "cuda:0: RuntimeError: ECC; cuda:1: RuntimeError: bus",
    ),
}


@pytest.mark.parametrize("is_configured", [False, True])
@pytest.mark.parametrize("case", VERDICTS)
def test_the_lowest_layer_that_fails_is_named(machine, case, is_configured):
    build, torch_like, given, reason, detail = VERDICTS[case]
    build(machine)
    entry = DeviceConfig(type="cuda", where="config.yaml, line 7") if is_configured else None
    findings, log = probe("cuda", machine.system(torch_like, **given), entry)
    assert findings.devices == ()
    (absent,) = findings.absent
    assert absent.reason is reason
    assert detail in absent.detail
    asked = "named in the config (config.yaml, line 7), but " if is_configured else ""
    assert str(absent).startswith(f"cuda: {asked}{reason.value}: ")
    assert log[0].startswith("cuda: driver probe: ")
    assert log[1].startswith("cuda: capability query: ")


def test_what_is_neither_there_nor_asked_for_is_not_worth_a_line(machine):
    findings, log = probe("cuda", machine.system())
    assert findings.absent == ()
    assert log == [
        "cuda: driver probe: no NVIDIA device",
        "cuda: capability query: this torch has no cuda",
    ]


def test_what_is_asked_for_and_not_there_is_told(machine):
    entry = DeviceConfig(type="cuda", where="config.yaml, line 2")
    findings, _ = probe("cuda", machine.system(), entry)
    assert str(findings.absent[0]) == (
        "cuda: named in the config (config.yaml, line 2), but no device: no NVIDIA device on this "
        "machine"
    )
    assert findings.absent[0].is_configured


@pytest.mark.parametrize(
    ("vendor", "driver", "kind", "reason"),
    [
        ("rocm", "amdgpu", "0x030000", AbsenceReason.NO_DEVICE_NODE),
        ("rocm", "amdgpu", "0x120000", AbsenceReason.NO_DEVICE_NODE),
        ("rocm", "", "0x0b4000", AbsenceReason.NO_DRIVER),
        ("xpu", "i915", "0x030000", AbsenceReason.NOT_IN_THIS_TORCH),
        ("xpu", "xe", "0x030000", AbsenceReason.NOT_IN_THIS_TORCH),
        ("xpu", "vfio-pci", "0x030000", AbsenceReason.NO_DRIVER),
        ("hpu", "habanalabs", "0x120000", AbsenceReason.NO_DEVICE_NODE),
        ("cuda", "snd_hda_intel", "0x040300", None),
        ("xpu", "e1000", "0x020000", None),
    ],
)
def test_cards_are_told_by_maker_and_class(machine, vendor, driver, kind, reason):
    machine.card(vendor, driver=driver, kind=kind, node="renderD129")
    machine.file("dev/dri/renderD129")
    findings, _ = probe(vendor, machine.system())
    assert [absent.reason for absent in findings.absent] == ([] if reason is None else [reason])


def test_render_nodes_are_those_of_the_card(machine):
    machine.card("xpu", driver="xe", node="renderD130")
    machine.file("dev/dri/renderD128")
    (absent,) = probe("xpu", machine.system())[0].absent
    assert absent.reason is AbsenceReason.NO_DEVICE_NODE


def test_a_container_that_hides_the_bus_shows_display_devices(machine):
    machine.file("sys/devices/pci0000/0000:03:00.0/vendor", "0x8086")
    machine.file("sys/devices/pci0000/0000:03:00.0/class", "0x030000")
    machine.file("sys/class/drm/card0/dev")
    link = machine.root / "sys/class/drm/card0/device"
    link.symlink_to(machine.root / "sys/devices/pci0000/0000:03:00.0")
    (absent,) = probe("xpu", machine.system())[0].absent
    assert absent.reason is AbsenceReason.NO_DRIVER


def test_broken_entries_of_the_bus_are_passed_over(machine):
    machine.file("sys/bus/pci/devices/0000:01:00.0/class", "0x030000")
    machine.file("sys/bus/pci/devices/0000:02:00.0/vendor", "what")
    assert probe("cuda", machine.system())[0].absent == ()


def test_devices_come_in_the_order_of_the_bus(machine):
    cards = [card_properties(number) for number in (2, 0, 1)]
    findings, log = probe("cuda", machine.system(fake_torch("cuda", cuda=Backend(*cards))))
    specs = [device.spec for device in findings.devices]
    assert [spec.native_index for spec in specs] == [1, 2, 0]
    assert [spec.uid[:17] for spec in specs] == [f"cuda:GPU-0000000{n}" for n in range(3)]
    first = specs[0]
    assert (first.vendor, first.native_type, first.name) == ("cuda", "cuda", "Card 0")
    assert (first.memory_bytes, first.dtypes, first.is_simulated) == (7 * 2**30, None, False)
    compute = "compute capability 9.0, 103 multiprocessors"
    assert {device.compute for device in findings.devices} == {compute}
    assert {device.num_operators for device in findings.devices} == {2}
    assert log[-1] == "cuda: identity by UUID"


@pytest.mark.parametrize(
    ("changes", "uids"),
    [
        ({"uuid": "MIG-7"}, ["cuda:HOST/0000:3b:00.0", "cuda:HOST/0000:3c:00.0"]),
        ({"uuid": "0000-00"}, ["cuda:HOST/0000:3b:00.0", "cuda:HOST/0000:3c:00.0"]),
        ({"uuid": None, "pci_bus_id": 7}, ["cuda:HOST/0", "cuda:HOST/1"]),
        ({"uuid": None, "pci_bus_id": None}, ["cuda:HOST/0", "cuda:HOST/1"]),
    ],
)
def test_identity_falls_back_to_what_tells_devices_apart(machine, changes, uids):
    cards = [card_properties(number, **changes) for number in range(2)]
    system = machine.system(fake_torch("cuda", cuda=Backend(*cards)))
    findings, _ = probe("cuda", system)
    assert [device.spec.uid for device in findings.devices] == [
        uid.replace("HOST", system.host_id) for uid in uids
    ]


@pytest.mark.parametrize(
    ("count", "num_used", "reasons"),
    [
        (None, 3, []),
        (3, 3, []),
        (1, 1, [AbsenceReason.NOT_CONFIGURED] * 2),
        (7, 3, [AbsenceReason.TOO_FEW]),
    ],
)
def test_count_and_fraction_of_the_config(machine, count, num_used, reasons):
    cards = [card_properties(number) for number in range(3)]
    entry = DeviceConfig(type="cuda", count=count, memory_fraction=0.5)
    findings, _ = probe("cuda", machine.system(fake_torch("cuda", cuda=Backend(*cards))), entry)
    assert [device.spec.memory_fraction for device in findings.devices] == [0.5] * num_used
    assert [absent.reason for absent in findings.absent] == reasons
    is_missing = [absent.is_configured for absent in findings.absent]
    assert is_missing == [reason is AbsenceReason.TOO_FEW for reason in reasons]


def test_one_silent_device_does_not_hide_the_others(machine):
    backend = Backend(card_properties(0), RuntimeError("fell off the bus"), card_properties(2))
    findings, _ = probe("cuda", machine.system(fake_torch("cuda", cuda=backend)))
    assert [device.spec.native_index for device in findings.devices] == [0, 2]
    (absent,) = findings.absent
    assert absent.reason is AbsenceReason.QUERY_FAILED
    assert absent.detail == "cuda:1: RuntimeError: fell off the bus"


def test_a_torch_for_rocm_drives_rocm_and_not_cuda(machine):
    torch_like = fake_torch("hip", cuda=Backend(card_properties(gcnArchName="gfx942")))
    (device,) = probe("rocm", machine.system(torch_like))[0].devices
    assert (device.spec.vendor, device.spec.native_type) == ("rocm", "cuda")
    assert device.compute == "architecture gfx942, 103 multiprocessors"
    assert probe("cuda", machine.system(torch_like))[0].devices == ()


def test_mps_has_no_double_and_says_its_memory(machine):
    # As torch.mps is: no properties and no names.
    backend = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1, recommended_max_memory=lambda: 2**33
    )
    system = machine.system(fake_torch("mps", mps=backend), platform="darwin")
    (device,) = probe("mps", system)[0].devices
    assert device.spec.memory_bytes == 2**33
    assert device.spec.dtypes is not None
    assert torch.float64 not in device.spec.dtypes
    assert {torch.float32, torch.bfloat16, torch.int64} <= device.spec.dtypes
    assert device.spec.name == "Apple device"


@pytest.mark.parametrize("vendor", ["mtia", "hpu"])
def test_a_part_of_torch_that_is_there_is_asked(machine, vendor):
    backend = Backend(card_properties(uuid=None, pci_bus_id=None))
    (device,) = probe(vendor, machine.system(fake_torch(**{vendor: backend})))[0].devices
    assert device.spec.native_type == vendor
    assert device.spec.uid == f"{vendor}:{machine.system().host_id}/0"


def test_an_apple_without_mps_in_torch(machine):
    (absent,) = probe("mps", machine.system(platform="darwin"))[0].absent
    assert absent.reason is AbsenceReason.NOT_IN_THIS_TORCH
