"""Devices made of the CPU and simulated ones."""

import pytest
import torch
from support.fl_machine import Machine

from lightning_mp.fl.config import CpuConfig, DeviceConfig, SimConfig
from lightning_mp.fl.discovery import AbsenceReason, System
from lightning_mp.fl.discovery.cpu_prober import CpuProber
from lightning_mp.fl.discovery.host_memory import usable_memory_bytes
from lightning_mp.fl.discovery.sim_prober import SimProber

MEMORY_BYTES = 7168 * 1024


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def cpu_devices(machine, *entries):
    return CpuProber().probe(entries, machine.system(), print).devices


def cpu_specs(machine, *entries):
    log = []
    findings = CpuProber().probe(entries, machine.system(), log.append)
    return [device.spec for device in findings.devices], findings.absent, log


def test_the_whole_cpu(machine):
    (spec,), absent, log = cpu_specs(machine)
    assert spec.name == "Old Abacus 7, cores 0-6"
    assert spec.uid == f"cpu:{machine.system().host_id}/0"
    assert (spec.cores, spec.memory_bytes, spec.dtypes) == ((), MEMORY_BYTES, None)
    assert absent == ()
    assert log == [
        "cpu: driver probe: Old Abacus 7, cores 0-6 usable",
        f"cpu: capability query: {MEMORY_BYTES} bytes, 3 operators, all dtypes",
    ]


@pytest.mark.parametrize(
    ("entries", "parts"),
    [
        ([CpuConfig(count=2)], [(0, 1, 2, 3), (4, 5, 6)]),
        ([CpuConfig(count=3)], [(0, 1, 2), (3, 4), (5, 6)]),
        ([CpuConfig(count=9)], [(n,) for n in (0, 1, 2, 3, 4, 5, 6, 0, 1)]),
        ([CpuConfig(cores=(5, 3))], [(3, 5)]),
        ([CpuConfig(cores=(6, 3, 1), count=2)], [(1, 3), (6,)]),
        ([CpuConfig(cores=(0,)), CpuConfig(cores=(0, 1))], [(0,), (0, 1)]),
    ],
)
def test_partitions(machine, entries, parts):
    specs, _, log = cpu_specs(machine, *entries)
    assert [spec.cores for spec in specs] == parts
    assert [spec.uid.rpartition("/")[2] for spec in specs] == [str(n) for n in range(len(parts))]
    assert {spec.memory_bytes for spec in specs} == {MEMORY_BYTES // len(parts)}
    counts = ["1 core" if len(cores) == 1 else f"{len(cores)} cores" for cores in parts]
    assert [device.compute for device in cpu_devices(machine, *entries)] == counts
    assert all(("core 0" in spec.name) == (spec.cores == (0,)) for spec in specs)
    shares = "cpu: 9 partitions share 7 cores" in log
    assert shares is (len(parts) == 9)


def test_identity_does_not_depend_on_the_cores_of_this_start(machine):
    before = cpu_specs(machine, CpuConfig(count=2))[0]
    machine.cores = (3, 4)
    after = cpu_specs(machine, CpuConfig(count=2))[0]
    assert [spec.uid for spec in before] == [spec.uid for spec in after]
    assert before[0].cores != after[0].cores


def test_cores_of_others_are_not_taken_and_the_rest_keeps_its_identity(machine):
    entries = [CpuConfig(cores=(6, 7, 8), where="config.yaml, line 2"), CpuConfig(cores=(1,))]
    (spec,), (absent,), _ = cpu_specs(machine, *entries)
    assert spec.uid.endswith("/1")
    assert absent.reason is AbsenceReason.NOT_ALLOWED_HERE
    assert absent.is_configured
    assert str(absent) == (
        "cpu: named in the config (config.yaml, line 2), but not open to this process: cores 7-8 "
        "are not among the 0-6 that this process may use; change cores or the process's affinity"
    )


def test_simulated_devices_say_so(machine):
    entries = [
        SimConfig(count=2),
        SimConfig(
            dtypes=("float32",),
            unsupported_operators=("aten::add",),
            memory_bytes=2**20,
            memory_fraction=0.25,
            slowdown=3,
            alignment_bytes=512,
        ),
    ]
    devices = SimProber().probe(entries, machine.system(), print).devices
    assert [device.spec.uid for device in devices] == ["sim:0", "sim:1", "sim:2"]
    for device in devices:
        assert device.spec.is_simulated
        assert device.spec.native_type == "cpu"
        assert "simulated" in device.spec.name
        assert "simulated" in device.compute
    last = devices[-1].spec
    assert last.dtypes == frozenset({torch.float32})
    assert last.unsupported_operators == frozenset({"aten::add"})
    assert (last.memory_bytes, last.memory_fraction) == (2**20, 0.25)
    assert (last.slowdown, last.alignment_bytes) == (3.0, 512)
    assert [device.num_operators for device in devices] == [3, 3, 1]


@pytest.mark.parametrize(("prober", "name"), [(CpuProber, "CpuConfig"), (SimProber, "SimConfig")])
def test_entries_of_another_class_are_refused(machine, prober, name):
    entry = DeviceConfig(type="xpu")
    with pytest.raises(TypeError, match=rf"entry = DeviceConfig\(.*\); allowed: {name}; make it"):
        prober().probe([entry], machine.system(), print)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, MEMORY_BYTES),
        ({"proc/meminfo": ""}, 0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, MEMORY_BYTES),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/memory.max": "8192",
                "sys/fs/cgroup/job/step/memory.max": "max",
            },
            8192,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "12288",
            },
            12288,
        ),
    ],
)
def test_memory_is_that_of_the_machine_or_of_the_control_group(machine, files, expected):
    for name, text in files.items():
        machine.file(name, text)
    assert usable_memory_bytes(machine.system()) == expected


def test_hosts_of_one_name_are_told_apart(machine):
    first = machine.system().host_id
    machine.file("etc/machine-id", "fedcba9876543210\n")
    second = machine.system().host_id
    assert first != second
    assert first.startswith("alpha-cluster-")
    assert "01234567" not in first
    (machine.root / "etc/machine-id").unlink()
    assert machine.system().host_id == "alpha-cluster"
    assert machine.system(host_name="../../etc").host_id == "------etc"
    assert machine.system(host_name="").host_id == "host"


def test_this_machine_can_be_looked_at():
    system = System()
    assert system.cores
    assert usable_memory_bytes(system) > 2**20
    assert system.host_id
