"""``lightning-mp devices``."""

import json

import pytest
from support.fl_machine import Backend, Machine, card_properties, fake_torch

from lightning_mp.cli import main
from lightning_mp.cli.devices import collect_devices, format_devices, summarise_devices
from lightning_mp.cli.info import collect_info
from lightning_mp.fl.config import CpuConfig, DeviceConfig, FlConfig, SimConfig
from lightning_mp.fl.discovery import discover


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def report(machine):
    config = FlConfig(
        devices=(
            CpuConfig(memory_fraction=0.5),
            SimConfig(memory_bytes=3 * 2**30, dtypes=("float32", "bfloat16")),
            DeviceConfig(type="cuda", count=2, where="config.yaml, line 5"),
        )
    )
    machine.card("rocm", driver="amdgpu")
    one = discover(
        config,
        system=machine.system(fake_torch("cuda", cuda=Backend(*map(card_properties, (0, 1))))),
    )
    assert len(one.specs) == 4
    torch_like = fake_torch("cuda", cuda=Backend(card_properties(1, total_memory=0)))
    return discover(config, system=machine.system(torch_like))


def test_table_and_what_is_not_used(report):
    text = format_devices(report)
    devices, not_used = text.split("Not used\n")
    rows = [line.split() for line in devices.splitlines()[1:]]
    assert rows[0] == ["id", "vendor", "name", "memory", "limit", "dtypes", "compute", "simulated"]
    assert [row[0] for row in rows[1:]] == ["fl:1", "fl:2", "fl:3"]
    assert [row[-1] for row in rows[1:]] == ["no", "no", "yes"]
    assert rows[1][1:6] == ["cuda", "Card", "1", "unknown", "unknown"]
    assert rows[2][7:11] == ["0.01", "GiB", "0.00", "GiB"]
    assert "bfloat16 float32" in devices
    lines = [line.strip() for line in not_used.splitlines()]
    assert lines[0].startswith("fl:0: cuda:GPU-00000000")
    assert lines[1].startswith("cuda: named in the config (config.yaml, line 5), but fewer than")
    assert lines[2].startswith("rocm: not in the config: 1 AMD card")
    assert f"ids: {report.state_file}" in lines
    assert "Steps" not in text


def test_steps_are_printed_on_request(report):
    text = format_devices(report, has_log=True)
    assert text.startswith(format_devices(report))
    assert all(f"  {line}" in text for line in report.log)


def test_json_has_all_of_it(report):
    content = json.loads(format_devices(report, as_json=True))
    assert content == collect_devices(report)
    assert [device["id"] for device in content["devices"]] == [0, 1, 2, 3]
    assert [device["is_available"] for device in content["devices"]] == [False, True, True, True]
    sim = content["devices"][-1]
    assert (sim["is_simulated"], sim["dtypes"]) == (True, ["bfloat16", "float32"])
    assert content["not_used"][0]["reason"] == "fewer than the config names"
    assert content["log"] == list(report.log)


def test_a_machine_without_devices_of_the_config(machine):
    config = FlConfig(devices=(DeviceConfig(type="xpu"),))
    report = discover(config, system=machine.system(folder=None))
    text = format_devices(report)
    assert text.startswith("Devices\n  none\nNot used\n  xpu: asked for, but no device")
    assert "ids: not kept, as there is no home" in text
    assert summarise_devices(report).startswith("no device; 1 named in the config and not there")


def test_the_cpu_alone(machine):
    text = format_devices(discover(FlConfig(), system=machine.system()))
    assert "Old Abacus 7, cores 0-6" in text
    assert "nothing else was found" in text
    assert "config: none, so the defaults" in text


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_FL_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize("option", ["", "--debug", "--json"])
def test_the_command(home, capsys, option):
    main(["devices", *filter(None, [option])])
    output = capsys.readouterr().out
    assert ("logical registration: fl:" in output) is bool(option)
    assert output.startswith("{" if option == "--json" else "Devices\n")


def test_a_broken_config_exits_with_2(home, monkeypatch, capsys):
    file = home / "fl.yaml"
    monkeypatch.setenv("TORCH_FL_CONFIG", str(file))
    for text, message in [(None, "where no file is"), ("device: []", "line 1: device is an unkn")]:
        if text is not None:
            file.write_text(text)
        with pytest.raises(SystemExit, match="2"):
            main(["devices"])
        assert message in capsys.readouterr().err


def test_info_has_a_line_and_writes_nothing(home, monkeypatch, capsys):
    main(["info"])
    output = capsys.readouterr().out
    assert "; lightning-mp devices says more" in output.partition("\nfl\n")[2].splitlines()[0]
    (home / "fl.yaml").write_text("devices: [{type: sim}]\nlogging: {path: fl.log}")
    monkeypatch.setenv("TORCH_FL_CONFIG", str(home / "fl.yaml"))
    assert "simulated device 0" in collect_info()["fl"]
    assert [path.name for path in home.iterdir()] == ["fl.yaml"]
    (home / "fl.yaml").write_text("devices: [{type: simm}]")
    assert collect_info()["fl"].startswith(f"not usable: {home}/fl.yaml, line 1: devices[0].type")
