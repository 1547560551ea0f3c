"""Reading the YAML file: what it gives, and where every refusal points."""

import math
import re
from pathlib import Path

import pytest

from lightning_mp.fl.config import (
    CpuConfig,
    DeviceConfig,
    FallbackConfig,
    FlConfig,
    LoggingConfig,
    SimConfig,
)
from lightning_mp.fl.config.reader import read_config

SOURCE = Path("/somewhere/config.yaml")
WHOLE = """\
devices:
  - type: cuda
    memory_fraction: 0.75
  - {type: cpu, count: 2, cores: [3, 5, 7]}
  - type: sim
    count: 1
    memory_bytes: 1_048_576
    dtypes: [float32, int64]
    unsupported_operators: [aten::tril, aten::add.out, mylib::thing]
    slowdown: 2
    alignment_bytes: 512
fallback:
  enable_cpu_fallback: no
  enable_generic_kernel: true
  deny: [aten::triu]
  allow: [aten::tril]
logging:
  level: debug
  path: fl.log
"""


def test_a_whole_file_is_read():
    config = read_config(WHOLE, SOURCE)
    assert config == FlConfig(
        devices=(
            DeviceConfig(type="cuda", memory_fraction=0.75),
            CpuConfig(count=2, cores=(3, 5, 7)),
            SimConfig(
                memory_bytes=2**20,
                dtypes=("float32", "int64"),
                unsupported_operators=("aten::tril", "aten::add.out", "mylib::thing"),
                slowdown=2,
                alignment_bytes=512,
            ),
        ),
        fallback=FallbackConfig(
            enable_cpu_fallback=False, deny=("aten::triu",), allow=("aten::tril",)
        ),
        logging=LoggingConfig(level="debug", path="/somewhere/fl.log"),
    )
    assert config.source == SOURCE
    assert [device.where for device in config.devices] == [
        f"{SOURCE}, line {line}" for line in (2, 4, 5)
    ]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "devices:\n", "devices: []\nfallback:\nlogging: {}\n", "---\n"]
)
def test_what_is_left_out_has_its_default(text):
    assert read_config(text, SOURCE) == FlConfig()


@pytest.mark.parametrize("text", [WHOLE, "", "devices: [{type: sim, count: 3}, {type: sim}]"])
def test_what_is_written_is_read_back(text):
    config = read_config(text, SOURCE)
    again = read_config(config.to_yaml(), Path("/elsewhere/effective.yaml"))
    assert again == config
    assert again.to_yaml() == config.to_yaml()


def test_written_text_has_the_defaults():
    text = FlConfig(devices=(DeviceConfig(type="xpu"),)).to_yaml()
    for line in ("count: null", "memory_fraction: 1.0", "deny: []", "level: warning"):
        assert line in text
    assert "where" not in text


@pytest.mark.parametrize("path", ["/var/log/fl.log", "~/fl.log", "sub/fl.log"])
def test_log_path_is_absolute(path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    found = read_config(f"logging: {{path: {path}}}", SOURCE).logging.path
    expected = {"/": path, "~": "/home/ada/fl.log", "s": "/somewhere/sub/fl.log"}
    assert found == expected[path[0]]


REFUSED = {
    # root and sections
    "device: []": (1, "device is an unknown key; allowed: devices, fallback, logging (did you"),
    "- a": (1, "the file = ['a'] is no mapping; allowed: the keys devices, fallback, logging"),
    "\n\ndevices: cpu": (3, "devices = 'cpu' is no list; allowed: a list of devices; begin each"),
    "devices: {type: cpu}": (1, "devices = {'type': 'cpu'} is no list"),
    "fallback: 7": (1, "fallback = 7 is no mapping; allowed: the keys enable_cpu_fallback"),
    "devices:\n- cpu": (2, "devices[0] = 'cpu' has no type; allowed: a mapping with type"),
    "devices:\n- type: cpu\n- count: 2": (3, "devices[1] = {'count': 2} has no type"),
    "logging:\n\n  levle: info": (3, "logging.levle is an unknown key; allowed: level, path (did"),
    # types of devices
    "devices:\n- count: 1\n  type: npu": (3, "devices[0].type = 'npu'; allowed: one of cuda, rocm"),
    "devices: [{type: [cpu]}]": (1, "devices[0].type = ['cpu']; allowed: one of cuda"),
    "devices:\n- type: cuda\n  cores: [0]": (
        3,
        "devices[0].cores is an unknown key; allowed: type",
    ),
    "devices:\n- type: cuda\n- type: cuda": (3, "devices[1].type = 'cuda', which is that of dev"),
    "devices:\n- type: cpu\n- type: cpu": (3, "devices[1].type = 'cpu' with devices[0].type"),
    "devices:\n- {type: cpu, cores: [0, 1]}\n- {type: cpu, cores: [1, 0]}": (
        3,
        "devices[1].cores = [1, 0], which are those of devices[0]; allowed: different cores",
    ),
    # numbers
    "devices:\n- type: cpu\n  count: 0": (3, "devices[0].count = 0; allowed: an integer of at le"),
    "devices: [{type: cpu, count: yes}]": (1, "devices[0].count = True; allowed: an integer"),
    "devices: [{type: cpu, count: '2'}]": (1, "devices[0].count = '2'; allowed: an integer"),
    "devices: [{type: cpu, count: 2.0}]": (1, "devices[0].count = 2.0; allowed: an integer"),
    "devices: [{type: sim, count: null}]": (1, "devices[0].count = None; allowed: an integer"),
    "devices: [{type: cpu, memory_fraction: 0}]": (1, "devices[0].memory_fraction = 0; allowed: a"),
    "devices: [{type: cpu, memory_fraction: 1.1}]": (1, "devices[0].memory_fraction = 1.1; allo"),
    "devices: [{type: cpu, memory_fraction: .nan}]": (1, "devices[0].memory_fraction = nan; allo"),
    "devices: [{type: cpu, memory_fraction: on}]": (1, "devices[0].memory_fraction = True; allo"),
    "devices: [{type: sim, slowdown: 0.5}]": (1, "devices[0].slowdown = 0.5; allowed: a number"),
    "devices: [{type: sim, slowdown: .inf}]": (1, "devices[0].slowdown = inf; allowed: a number"),
    "devices: [{type: sim, memory_bytes: 1GiB}]": (1, "devices[0].memory_bytes = '1GiB'; allowed"),
    "devices: [{type: sim, alignment_bytes: 96}]": (1, "devices[0].alignment_bytes = 96; allowed"),
    "devices: [{type: sim, alignment_bytes: 256.0}]": (1, "devices[0].alignment_bytes = 256.0; al"),
    # lists
    "devices:\n- type: cpu\n  cores: 3": (3, "devices[0].cores = 3; allowed: a list; write it"),
    "devices:\n- type: cpu\n  cores:\n  - 3\n  - 3": (
        5,
        "devices[0].cores[1] = 3, which is in the",
    ),
    "devices: [{type: cpu, cores: [-1]}]": (1, "devices[0].cores[0] = -1; allowed: an integer"),
    "devices: [{type: cpu, cores: [0], count: 2}]": (1, "devices[0].count = 2 with 1 cores; allo"),
    "devices: [{type: sim, dtypes: []}]": (1, "devices[0].dtypes = []; allowed: at least one"),
    "devices: [{type: sim, dtypes: [float23]}]": (1, "devices[0].dtypes[0] = 'float23'; allowed"),
    "devices: [{type: sim, unsupported_operators: [tril]}]": (
        1,
        "devices[0].unsupported_operators[0] = 'tril'; allowed: an operator as namespace::name",
    ),
    "fallback:\n  deny:\n  - aten::tril\n  - aten::trill": (
        4,
        "fallback.deny[1] = 'aten::trill'; allowed: an operator that torch",
    ),
    "fallback: {allow: [aten::tril], deny: [aten::tril]}": (
        1,
        "fallback.allow[0] = 'aten::tril', which deny has too; allowed: an operator in one",
    ),
    "fallback: {enable_cpu_fallback: 1}": (1, "fallback.enable_cpu_fallback = 1; allowed: true or"),
    "fallback: {enable_generic_kernel: 'no'}": (1, "fallback.enable_generic_kernel = 'no'; allo"),
    # logging
    "logging: {level: loud}": (1, "logging.level = 'loud'; allowed: one of debug, info, warning"),
    "logging: {path: 3}": (1, "logging.path = 3; allowed: the name of a file, or null"),
    "logging: {path: ''}": (1, "logging.path = ''; allowed: the name of a file, or null"),
    # YAML itself
    "devices: [\n": (2, "this is not YAML ("),
    "a: 1\n---\nb: 2": (2, "this is not YAML ("),
    "logging: {path: \x07}": (1, "this is not YAML ("),
    "logging:\n  level: info\n  level: debug": (
        3,
        "logging.level stands there twice, first in line 2; allowed: each key once",
    ),
    "? [a]\n: 1": (1, "a list or mapping stands in place of a key; allowed: words"),
    "logging: {path: !!python/name:os.system x}": (1, "logging.path = 'x' with tag"),
    "logging: {path: !!int x}": (1, "logging.path = 'x' with tag"),
    "devices: &a [*a]": (1, "devices[0][0][0] is nested too deep; allowed: sections, lists"),
    "logging:\n  <<: {level: info}": (2, "logging.<< is an unknown key; allowed: level, path"),
}


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_refusals_name_the_line_and_the_value(text):
    line, message = REFUSED[text]
    start = re.escape(f"{SOURCE}, line {line}: {message}")
    with pytest.raises(ValueError, match=f"^{start}"):
        read_config(text, SOURCE)


def test_repeated_aliases_do_not_multiply():
    lists = "\n".join(f"k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20))
    with pytest.raises(ValueError, match=r"line \d+: \S+ is nested too deep"):
        read_config(f"k0: &a0 [x]\n{lists}", SOURCE)


@pytest.mark.parametrize(
    ("operator", "permitted"),
    [
        ("aten::tril", False),
        ("aten::tril.out", False),
        ("aten::add.Tensor", False),
        ("aten::add.out", True),
        ("aten::add", True),
        ("aten::triu", True),
    ],
)
def test_which_operator_may_fall_back(operator, permitted):
    fallback = FallbackConfig(deny=("aten::tril", "aten::add.Tensor"))
    assert fallback.permits_cpu(operator) is permitted


@pytest.mark.parametrize(
    ("operator", "permitted"),
    [("aten::tril", True), ("aten::tril.out", False), ("aten::triu", False)],
)
def test_allowed_operators_fall_back_where_others_do_not(operator, permitted):
    fallback = FallbackConfig(
        enable_cpu_fallback=False, allow=("aten::tril",), deny=("aten::tril.out",)
    )
    assert fallback.permits_cpu(operator) is permitted


def test_dtypes_of_sim_are_torch_dtypes_without_double_and_complex():
    dtypes = SimConfig().torch_dtypes
    assert len(dtypes) == 9
    assert all(not dtype.is_complex and dtype.itemsize <= 8 for dtype in dtypes)
    assert not math.isnan(SimConfig().slowdown)
