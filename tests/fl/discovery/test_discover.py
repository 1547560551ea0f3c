"""Which vendors are asked, in which order, and what the report says."""

import logging
from dataclasses import dataclass, field

import pytest
from support.fl_machine import Backend, Machine, card_properties, fake_torch

from lightning_mp.fl.config import CpuConfig, DeviceConfig, FlConfig, LoggingConfig, SimConfig
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery import (
    AbsenceReason,
    FoundDevice,
    VendorFindings,
    discover,
    list_devices,
)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@dataclass
class FakeProber:
    vendor: str
    num_devices: int = 1
    error: Exception | None = None
    entries: list = field(default_factory=list)

    def probe(self, entries, system, log):
        self.entries.append(list(entries))
        log(f"{self.vendor}: asked")
        if self.error is not None:
            raise self.error
        specs = [
            DeviceSpec(-1, self.vendor, self.vendor, n, f"{self.vendor} {n}", f"{self.vendor}:{n}")
            for n in range(self.num_devices)
        ]
        return VendorFindings(tuple(map(FoundDevice, specs)))


def names(report):
    return [spec.name for spec in report.specs]


def all_probers(**given):
    return [
        FakeProber(name, num_devices=given.get(name, 0)) for name in ("sim", "cpu", "cuda", "xpu")
    ]


@pytest.mark.parametrize(
    ("found", "devices", "expected"),
    [
        ({"cpu": 1}, [], ["cpu 0"]),
        ({"cpu": 1, "cuda": 2, "xpu": 1}, [], ["cuda 0", "cuda 1", "xpu 0"]),
        ({"cpu": 1, "cuda": 1, "xpu": 1}, ["xpu", "cuda"], ["xpu 0", "cuda 0"]),
        ({"cpu": 1, "cuda": 1, "sim": 1}, ["sim", "cpu", "cuda"], ["cuda 0", "sim 0", "cpu 0"]),
        ({"cpu": 1, "cuda": 1, "sim": 1}, ["cpu"], ["cpu 0"]),
        ({"cpu": 1, "cuda": 0}, ["cuda"], []),
        ({"cpu": 1, "sim": 1}, ["sim"], ["sim 0"]),
    ],
)
def test_accelerators_first_and_the_cpu_only_alone_or_by_name(machine, found, devices, expected):
    make = {"cpu": CpuConfig, "sim": SimConfig}
    entries = [make[n]() if n in make else DeviceConfig(type=n) for n in devices]
    config = FlConfig(devices=tuple(entries))
    report = discover(config, system=machine.system(), probers=all_probers(**found))
    assert names(report) == expected
    assert [spec.index for spec in report.specs] == list(range(len(expected)))


def test_only_what_the_config_names_is_asked(machine):
    probers = all_probers(cpu=1, cuda=1, xpu=1, sim=1)
    entry = DeviceConfig(type="xpu", count=1)
    discover(FlConfig(devices=(entry,)), system=machine.system(), probers=probers)
    assert {prober.vendor: prober.entries for prober in probers if prober.entries} == {
        "xpu": [[entry]]
    }


def test_torch_is_not_asked_for_cards_that_the_config_leaves_out(machine):
    machine.card("cuda", driver="nvidia")
    backend = Backend(card_properties())
    system = machine.system(fake_torch("cuda", cuda=backend))
    report = discover(FlConfig(devices=(CpuConfig(),)), system=system)
    assert backend.num_questions == 0
    (absent,) = report.absent
    assert (absent.reason, absent.is_configured) == (AbsenceReason.NOT_CONFIGURED, False)
    assert "add an entry with type: cuda to use it" in absent.detail
    report.require_configured()


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_vendor_that_fails_does_not_stop_the_others(machine, is_configured):
    probers = [FakeProber("cuda", error=KeyError("lost")), FakeProber("xpu")]
    types = ("cuda", "xpu") if is_configured else ()
    config = FlConfig(devices=tuple(DeviceConfig(type=name) for name in types))
    report = discover(config, system=machine.system(), probers=probers)
    assert names(report) == ["xpu 0"]
    (absent,) = report.absent
    assert (absent.vendor, absent.reason) == ("cuda", AbsenceReason.QUERY_FAILED)
    assert absent.detail == "KeyError: 'lost'"
    assert absent.is_configured is is_configured
    assert "cuda: probe failed: KeyError: 'lost'" in report.log


def test_a_configured_device_that_is_missing_can_be_refused(machine):
    config = FlConfig(devices=(DeviceConfig(type="cuda", where="config.yaml, line 2"),))
    report = discover(config, system=machine.system())
    assert report.specs == ()
    message = r"fl device = cuda: named in the config \(config\.yaml, line 2\), but no device: .*; "
    with pytest.raises(RuntimeError, match=f"{message}needed: every device that the config names"):
        report.require_configured()


def test_the_log_has_every_step(machine):
    torch_like = fake_torch("cuda", cuda=Backend(card_properties(3)))
    report = discover(FlConfig(), system=machine.system(torch_like))
    starts = [
        "config: defaults, 0 entries of devices",
        "cuda: driver probe: no NVIDIA device",
        "cuda: capability query: cuda:0 is Card 3, 7516192768 bytes, compute capability 9.0",
        "cuda: identity by UUID",
        "rocm: driver probe: no AMD device",
        f"ids: {report.state_file} written",
        "logical registration: fl:0 = cuda:GPU-00000003-1111-2222-3333-444444444444 (Card 3)",
    ]
    places = [
        next(n for n, line in enumerate(report.log) if line.startswith(start)) for start in starts
    ]
    assert places == sorted(places)
    assert report.state_file.parent.is_dir()


@pytest.fixture
def fl_logger():
    logger = logging.getLogger("lightning_mp.fl")
    level = logger.level
    yield logger
    logger.setLevel(level)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def test_the_steps_are_logged_as_the_config_says(machine, fl_logger, tmp_path):
    path = tmp_path / "logs" / "fl.log"
    config = FlConfig(logging=LoggingConfig(level="info", path=str(path)))
    logs = [discover(config, system=machine.system()).log for _ in range(2)]
    lines = path.read_text().splitlines()
    expected = [line for log in logs for line in log]
    assert all(line.endswith(end) for line, end in zip(lines, expected, strict=True))
    assert len(fl_logger.handlers) == 1


def test_a_level_of_the_program_stays(machine, fl_logger):
    fl_logger.setLevel(logging.ERROR)
    discover(FlConfig(), system=machine.system())
    assert fl_logger.level == logging.ERROR
    discover(FlConfig(logging=LoggingConfig(level="debug")), system=machine.system())
    assert fl_logger.level == logging.DEBUG


def test_a_log_that_cannot_be_written_costs_a_warning(machine, fl_logger, tmp_path):
    config = FlConfig(logging=LoggingConfig(path=str(tmp_path)))
    with pytest.warns(UserWarning, match=r"logging\.path = '.*' cannot be written \(Is a direct"):
        report = discover(config, system=machine.system())
    assert len(report.specs) == 1


def test_nothing_is_logged_where_nothing_may_be_written(machine, fl_logger, tmp_path):
    config = FlConfig(logging=LoggingConfig(path=str(tmp_path / "fl.log")))
    discover(config, system=machine.system(), writes=False)
    assert not (tmp_path / "fl.log").exists()


def test_devices_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_FL_CONFIG", raising=False)
    records = list_devices()
    assert [record.is_available for record in records].count(True) >= 1
    assert all(record.num_operators > 1000 for record in records if record.is_available)
    monkeypatch.setenv("TORCH_FL_CONFIG", str(tmp_path / "fl.yaml"))
    (tmp_path / "fl.yaml").write_text("devices: [{type: cpu, memory_fraction: 0.5}, {type: sim}]")
    cpu, sim = [record for record in list_devices() if record.spec.native_type == "cpu"]
    assert cpu.limit_bytes == cpu.spec.memory_bytes // 2 > 0
    assert sim.spec.is_simulated
