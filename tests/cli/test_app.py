import os
import re
import subprocess
import sys

import pytest

import lightning_mp
from lightning_mp.cli import main


@pytest.fixture(autouse=True)
def own_search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_help_lists_all_commands_with_a_line_each(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    summaries = {line[0]: line[1] for line in lines if len(line) == 2}
    for command in ("fit", "validate", "test", "predict", "info", "devices", "init"):
        assert summaries[command]


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"lightning-mp {lightning_mp.__version__}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "required: COMMAND"),
        (["fitt"], "'fitt' .*fit.*validate.*test.*predict.*info.*devices.*init"),
        (["info", "--yaml"], "unrecognized arguments: --yaml"),
    ],
)
def test_wrong_arguments_exit_with_2(capsys, args, message):
    with pytest.raises(SystemExit, match="2"):
        main(args)
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_arguments_default_to_those_of_the_process(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lightning-mp", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out.startswith("lightning-mp ")


def test_current_folder_becomes_importable(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for _ in range(2):
        main(["info"])
    assert sys.path[0] == os.getcwd()
    assert sys.path.count(os.getcwd()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["module", "console script"])
def test_both_forms_find_modules_of_the_current_folder(tmp_path, form):
    (tmp_path / "mine.py").write_text(
        "from lightning.pytorch.demos.boring_classes import BoringModel\n"
        "class Mine(BoringModel):\n"
        "    pass\n"
    )
    script = tmp_path / "bin" / "lightning-mp"
    script.parent.mkdir()
    script.write_text("from lightning_mp.cli import main\nmain()\n")
    start = ["-m", "lightning_mp"] if form == "module" else [str(script)]
    run = subprocess.run(
        [sys.executable, *start, "fit", "--model=mine.Mine", "--print_config"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "class_path: mine.Mine" in run.stdout
