import os
import shlex
import subprocess
import sys

import pytest
import yaml

from lightning_mp.cli import main
from lightning_mp.cli.starter import STARTER_FILES, copy_starter
from lightning_mp.cli.templates.starter import NUM_CLASSES, SpiralClassifier, SpiralData


@pytest.fixture(autouse=True)
def current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_files_land_here_and_the_next_command_is_named(tmp_path, capsys):
    main(["init"])
    assert sorted(os.listdir(tmp_path)) == sorted(STARTER_FILES)
    assert capsys.readouterr().out.endswith("next: lightning-mp fit --config starter.yaml\n")


def test_other_folder_is_made(tmp_path, capsys):
    main(["init", "--directory", "new folder/deep"])
    assert sorted(os.listdir(tmp_path / "new folder" / "deep")) == sorted(STARTER_FILES)
    assert "next: cd 'new folder/deep' && lightning-mp fit" in capsys.readouterr().out


@pytest.mark.parametrize("existing", STARTER_FILES)
def test_nothing_is_overwritten_without_force(tmp_path, capsys, existing):
    (tmp_path / existing).write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        main(["init"])
    assert f"already has {existing}; allowed" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [existing]
    assert (tmp_path / existing).read_text() == "mine"
    main(["init", "--force"])
    assert (tmp_path / existing).read_text() != "mine"


@pytest.mark.parametrize("existing", STARTER_FILES)
def test_a_folder_is_never_overwritten(tmp_path, capsys, existing):
    (tmp_path / existing).mkdir()
    with pytest.raises(SystemExit, match="2"):
        main(["init", "--force"])
    assert f"has a folder named {existing}; allowed" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [existing]


def test_a_place_that_cannot_be_written_to(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["init", "--directory", "/proc/nowhere"])
    assert "/proc/nowhere" in capsys.readouterr().err


def test_dangling_link_is_in_the_way(tmp_path):
    (tmp_path / "starter.py").symlink_to(tmp_path / "gone.py")
    with pytest.raises(FileExistsError, match=r"already has starter\.py"):
        copy_starter(tmp_path)
    assert not (tmp_path / "gone.py").exists()


def test_file_in_place_of_the_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file; allowed: a folder"):
        copy_starter(tmp_path / "file")
    with pytest.raises(SystemExit, match="2"):
        main(["init", "--directory", "file"])
    assert "is a file" in capsys.readouterr().err


def test_config_names_what_the_module_has(tmp_path):
    copy_starter(tmp_path)
    config = yaml.safe_load((tmp_path / "starter.yaml").read_text())
    assert config["trainer"]["precision"] == "O2-bf16"
    assert config["model"]["class_path"] == f"starter.{SpiralClassifier.__name__}"
    assert config["data"]["class_path"] == f"starter.{SpiralData.__name__}"
    model = SpiralClassifier(**config["model"]["init_args"])
    data = SpiralData(**config["data"]["init_args"])
    data.setup("fit")
    points, labels = next(iter(data.train_dataloader()))
    assert model(points).shape == (len(labels), NUM_CLASSES)


def test_splits_are_apart_and_the_same_in_every_process():
    first, second = SpiralData(num_samples=103), SpiralData(num_samples=103)
    for data in (first, second):
        data.setup("fit")
    splits = [first.train_set, first.val_set, first.test_set]
    indices = [index for split in splits for index in split.indices]
    assert sorted(indices) == list(range(103))
    assert second.val_set.indices == first.val_set.indices
    assert second.train_set[0][0].equal(first.train_set[0][0])


@pytest.mark.slow
def test_the_printed_command_learns(tmp_path, capsys):
    main(["init", "--directory", "starter folder"])
    command = capsys.readouterr().out.partition("&& ")[2]
    program, *args = shlex.split(command)
    assert program == "lightning-mp"
    args += ["--trainer.precision=32-true", "--trainer.enable_progress_bar=false"]
    args += ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=."]
    run = subprocess.run(
        [sys.executable, "-m", "lightning_mp", *args],
        cwd=tmp_path / "starter folder",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (metrics,) = (tmp_path / "starter folder").rglob("metrics.csv")
    header, *rows = [line.split(",") for line in metrics.read_text().splitlines()]
    column = header.index("val_accuracy")
    accuracies = [float(row[column]) for row in rows if row[column]]
    assert accuracies[-1] > 0.9
