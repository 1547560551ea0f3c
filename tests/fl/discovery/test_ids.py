"""Logical ids: stable over starts, over processes, over damaged and read-only homes."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fl_machine import Backend, Machine, card_properties, fake_torch

from lightning_mp.fl.config import CpuConfig, DeviceConfig, FlConfig, SimConfig
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery import AbsenceReason, FoundDevice, discover
from lightning_mp.fl.discovery.id_file import IdFile
from lightning_mp.fl.discovery.id_table import MAX_DEVICES, IdTable

ROOT = Path(__file__).parents[3]
CUDA = FlConfig(devices=(DeviceConfig(type="cuda"),))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def ids(machine, *cards, config=None, **given):
    """Logical id -> name, at a start of a machine with these cards."""
    torch_like = fake_torch("cuda", cuda=Backend(*map(card_properties, cards)))
    report = discover(config or FlConfig(), system=machine.system(torch_like, **given))
    return {spec.index: spec.name for spec in report.specs}


def device(number):
    spec = DeviceSpec(-1, "cuda", "cuda", number, f"Card {number}", f"cuda:GPU-{number}")
    return FoundDevice(spec)


def state_file(machine):
    return machine.home / ".torch_fl" / "state" / f"{machine.system().host_id}.json"


def test_a_vanished_device_leaves_a_hole_and_comes_back(machine):
    assert ids(machine, 0, 1, 2) == {0: "Card 0", 1: "Card 1", 2: "Card 2"}
    assert ids(machine, 0, 2) == {0: "Card 0", 2: "Card 2"}
    assert ids(machine, 0, 2, 7) == {0: "Card 0", 2: "Card 2", 3: "Card 7"}
    assert ids(machine, 7, 2, 1, 0) == {0: "Card 0", 1: "Card 1", 2: "Card 2", 3: "Card 7"}


def test_a_vanished_device_stays_in_the_list(machine):
    ids(machine, 0, 1)
    torch_like = fake_torch("cuda", cuda=Backend(card_properties(1)))
    report = discover(FlConfig(), system=machine.system(torch_like))
    gone, here = report.records
    assert (gone.spec.index, gone.is_available, gone.limit_bytes) == (0, False, 0)
    assert "(Card 0) is known from an earlier start, not found now" in gone.reason
    assert here.is_available
    assert report.specs == (here.spec,)


def test_order_of_visible_devices_does_not_matter(machine):
    ids(machine, 0, 1)
    torch_like = fake_torch("cuda", cuda=Backend(card_properties(1), card_properties(0)))
    report = discover(FlConfig(), system=machine.system(torch_like))
    assert [(spec.index, spec.native_index) for spec in report.specs] == [(0, 1), (1, 0)]


def test_the_cpu_alone_keeps_no_id_from_an_accelerator_to_come(machine):
    assert ids(machine) == {0: "Old Abacus 7, cores 0-6"}
    assert not machine.home.exists()
    assert ids(machine, 0) == {0: "Card 0"}
    assert ids(machine) == {1: "Old Abacus 7, cores 0-6"}
    assert len(json.loads(state_file(machine).read_text())["devices"]) == 1


def test_partitions_and_simulated_devices_keep_their_ids(machine):
    both = FlConfig(devices=(CpuConfig(count=2), SimConfig()))
    assert list(ids(machine, config=both).values()) == [
        "Old Abacus 7, cores 0-3",
        "Old Abacus 7, cores 4-6",
        "simulated device 0, no hardware",
    ]
    one = FlConfig(devices=(CpuConfig(count=1), SimConfig(count=2)))
    assert ids(machine, config=one) == {
        0: "Old Abacus 7, cores 0-6",
        2: "simulated device 0, no hardware",
        3: "simulated device 1, no hardware",
    }


def test_ids_end_with_the_last_that_a_process_can_have(machine):
    first = FlConfig(devices=(SimConfig(count=13),))
    assert len(ids(machine, config=first)) == 13
    config = FlConfig(devices=(CpuConfig(count=5),))
    report = discover(config, system=machine.system())
    assert [spec.index for spec in report.specs] == [13, 14, 15]
    assert [absent.reason for absent in report.absent] == [AbsenceReason.NO_ID] * 2
    message = r"no logical id left: Old Abacus 7, core 5 is the next .*; delete .*\.json to number"
    with pytest.raises(RuntimeError, match=message):
        report.require_configured()
    assert [spec.index for spec in discover(config, system=machine.system()).specs] == [13, 14, 15]
    report.state_file.unlink()
    assert len(ids(machine, config=config)) == 5


def test_each_host_has_its_own_table(machine):
    ids(machine, 0, 1)
    assert ids(machine, 1, host_name="beta") == {0: "Card 1"}
    assert ids(machine, 1) == {1: "Card 1"}
    assert len(list(state_file(machine).parent.glob("*.json"))) == 2


def test_nothing_is_written_when_nothing_is_new(machine):
    ids(machine, 0)
    before = state_file(machine).stat()
    ids(machine, 0)
    after = state_file(machine).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_look_without_writing(machine):
    torch_like = fake_torch("cuda", cuda=Backend(card_properties(0)))
    report = discover(FlConfig(), system=machine.system(torch_like), writes=False)
    assert [spec.index for spec in report.specs] == [0]
    assert not machine.home.exists()


DAMAGED = {
    "": "Expecting value",
    "{": "Expecting property name",
    "[]": "no version 1",
    '{"version": 2, "devices": []}': "no version 1",
    '{"version": 1}': "broken entries",
    '{"version": 1, "devices": [7]}': "broken entries",
    '{"version": 1, "devices": [{"index": -1, "uid": "a", "vendor": "b", "name": "c"}]}': "broken",
    '{"version": 1, "devices": [{"index": 1.0, "uid": "a", "vendor": "b", "name": "c"}]}': "broken",
    '{"version": 1, "devices": [{"index": 0, "uid": 1, "vendor": "b", "name": "c"}]}': "broken",
    '{"version": 1, "devices": [{"index": 0, "uid": "a"}]}': "broken entries",
    '{"version": 1, "devices": [{"index": 0, "uid": "a", "vendor": "b", "name": "c"},'
    ' {"index": 0, "uid": "d", "vendor": "b", "name": "c"}]}': "twice",
    '{"version": 1, "devices": [{"index": 0, "uid": "a", "vendor": "b", "name": "c"},'
    ' {"index": 1, "uid": "a", "vendor": "b", "name": "c"}]}': "twice",
    "[" * 100_000: "state = nested too deep; allowed|Too many|too deep|Expecting",
}


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:60])
def test_a_damaged_table_is_moved_aside(machine, text):
    file = state_file(machine)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    message = rf"ids of fl devices in .* = damaged \(.*({DAMAGED[text]}).*\); it is now .*json\.dam"
    with pytest.warns(UserWarning, match=message):
        assert ids(machine, 0, 1) == {0: "Card 0", 1: "Card 1"}
    assert ids(machine, 1) == {1: "Card 1"}
    (aside,) = file.parent.glob("*.damaged-*")
    assert aside.read_text() == text


def test_a_damaged_table_is_left_alone_by_a_look(machine):
    file = state_file(machine)
    file.parent.mkdir(parents=True)
    file.write_text("damaged")
    torch_like = fake_torch("cuda", cuda=Backend(card_properties(0)))
    report = discover(FlConfig(), system=machine.system(torch_like), writes=False)
    assert [spec.index for spec in report.specs] == [0]
    assert any("is not usable" in line for line in report.log)
    assert file.read_text() == "damaged"


def test_a_text_that_is_not_utf_8_is_damaged(machine):
    file = state_file(machine)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.warns(UserWarning, match="= damaged"):
        assert ids(machine, 0) == {0: "Card 0"}


CANNOT = "ids of fl devices cannot be kept in .*; they are given by order and may be others"


def test_without_a_home_ids_are_by_order(machine):
    with pytest.warns(UserWarning, match=f"{CANNOT}"):
        assert ids(machine, 5, 3, folder=None) == {0: "Card 3", 1: "Card 5"}


def test_a_home_that_cannot_be_written(machine):
    # A file in place of the folder refuses everybody, the superuser too.
    machine.home.write_text("")
    with pytest.warns(UserWarning, match=CANNOT):
        assert ids(machine, 5, 3) == {0: "Card 3", 1: "Card 5"}


def test_a_table_that_cannot_be_written_is_read(machine, monkeypatch):
    ids(machine, 0, 1)

    def refuse(*args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    before = state_file(machine).read_text()
    assert ids(machine, 1) == {1: "Card 1"}
    with pytest.warns(UserWarning, match="Read-only file system"):
        assert ids(machine, 1, 2) == {1: "Card 1", 2: "Card 2"}
    assert state_file(machine).read_text() == before


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), BlockingIOError()])
def test_a_lock_that_cannot_be_had_costs_a_warning(machine, monkeypatch, error):
    def refuse(file, operation):
        raise error

    monkeypatch.setattr(fcntl, "flock", refuse)
    id_file = IdFile(machine.home / ".torch_fl", "alpha", print, lock_seconds=0)
    with pytest.warns(UserWarning, match="No locks available|lock '.*' = held by another process"):
        table = id_file.register([device(7)])
    assert table.index_of("cuda:GPU-7") == 0
    assert not list((machine.home / ".torch_fl" / "state").glob("*.json"))


def test_another_process_holds_the_lock(machine):
    folder = machine.home / ".torch_fl"
    id_file = IdFile(folder, "alpha", print, lock_seconds=0)
    (folder / "state").mkdir(parents=True)
    with (folder / "state" / "alpha.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.warns(UserWarning, match="held by another process for over 0 s"):
            id_file.register([device(1)])
    assert id_file.register([device(1)]).index_of("cuda:GPU-1") == 0


def test_a_table_is_written_and_read():
    table = IdTable().extended([device(number) for number in (7, 3, 7)])
    assert [entry.index for entry in table.entries] == [0, 1]
    assert IdTable.from_json(table.to_json()) == table
    assert table.extended([device(3)]) is table


WRITER = """
import sys
from pathlib import Path
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery import FoundDevice
from lightning_mp.fl.discovery.id_file import IdFile

for number in range(4):
    name = f"{sys.argv[2]}-{number}"
    spec = DeviceSpec(-1, "sim", "cpu", 0, name, f"sim:{name}")
    shared = DeviceSpec(-1, "sim", "cpu", 0, "shared", f"sim:shared-{number}")
    IdFile(Path(sys.argv[1]), "alpha", print).register([FoundDevice(shared), FoundDevice(spec)])
"""


@pytest.mark.slow
def test_processes_that_start_together_agree(machine):
    folder = machine.home / ".torch_fl"
    writers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WRITER, str(folder), str(rank)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for rank in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    table = IdFile(folder, "alpha", print).read()
    assert [entry.index for entry in table.entries] == list(range(MAX_DEVICES))
    assert len({entry.uid for entry in table.entries}) == MAX_DEVICES
    assert sorted(path.name for path in (folder / "state").iterdir()) == [
        "alpha.json",
        "alpha.lock",
    ]
