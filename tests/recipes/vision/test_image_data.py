import struct
import sys

import pytest
import torch

from lightning_mp.recipes.vision import ImageDataModule
from lightning_mp.recipes.vision.digits import load_digits


@pytest.fixture
def idx_folder(tmp_path):
    """103 training and 13 test images of 28x28 in plain IDX files."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 103), ("t10k", 13)):
        pixels = torch.randint(256, (count * 784,), generator=generator).tolist()
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(pixels)
        )
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(i % 10 for i in range(count))
        )
    return tmp_path


def read_all(loader):
    images, labels = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(labels)


def test_digits_have_the_documented_sizes_and_shares():
    data = ImageDataModule(batch_size=103)
    data.setup("fit")
    loaders = (data.train_dataloader(), data.val_dataloader(), data.test_dataloader())
    parts = [read_all(loader) for loader in loaders]
    assert [len(labels) for _, labels in parts] == [1293, 144, 360]
    assert all(images.shape[1:] == (1, 8, 8) for images, _ in parts)
    for _, labels in parts:
        shares = labels.bincount(minlength=10) / len(labels)
        assert (shares - 0.1).abs().max() < 0.015


@pytest.mark.parametrize("num_workers", [0, 2])
def test_idx_folder_is_served_once_per_image(idx_folder, num_workers):
    data = ImageDataModule(
        str(idx_folder), batch_size=7, val_fraction=0.13, num_workers=num_workers
    )
    data.setup("fit")
    loader = data.train_dataloader()
    assert loader.persistent_workers == (num_workers > 0)
    images, labels = read_all(loader)
    val_images, val_labels = read_all(data.val_dataloader())
    assert (len(labels), len(val_labels)) == (90, 13)
    assert images.shape == (90, 1, 28, 28)
    # Random images: all differ, within and between the parts.
    assert len(torch.cat([images, val_images]).unique(dim=0)) == 103
    test_images, test_labels = read_all(data.test_dataloader())
    assert test_images.shape == (13, 1, 28, 28)
    assert torch.equal(test_labels, torch.arange(13) % 10)
    assert torch.equal(read_all(data.predict_dataloader())[0], test_images)


def test_images_are_normalised_over_the_training_part(idx_folder):
    for data_dir in (None, str(idx_folder)):
        data = ImageDataModule(data_dir, batch_size=64)
        data.setup()
        images, labels = read_all(data.train_dataloader())
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert abs(float(images.mean())) < 1e-4
        assert float(images.std()) == pytest.approx(1.0, abs=1e-4)


def test_split_ignores_the_seed_of_the_run():
    held_out = []
    for run_seed, split_seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(run_seed)
        data = ImageDataModule(split_seed=split_seed)
        data.setup()
        held_out.append((read_all(data.val_dataloader())[0], read_all(data.test_dataloader())[0]))
    assert all(torch.equal(a, b) for a, b in zip(held_out[0], held_out[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(held_out[1], held_out[2], strict=True))


def test_setup_loads_once(idx_folder):
    data = ImageDataModule(str(idx_folder))
    data.setup("fit")
    for path in idx_folder.iterdir():
        path.unlink()
    data.setup("test")
    assert len(read_all(data.test_dataloader())[1]) == 13


def test_nothing_is_half_loaded(idx_folder):
    path = idx_folder / "t10k-labels-idx1-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    data = ImageDataModule(str(idx_folder))
    with pytest.raises(ValueError, match=r"t10k-labels.*truncated"):
        data.setup("fit")
    path.write_bytes(whole)
    data.setup("fit")
    assert len(read_all(data.train_dataloader())[1]) == 93


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0; allowed 1 or more"),
        ({"num_workers": -1}, "num_workers = -1; allowed 0 or more"),
        ({"val_fraction": 0.0}, "val_fraction = 0.0; allowed above 0 and below 1"),
        ({"val_fraction": 1.0}, "val_fraction = 1.0; allowed above 0 and below 1"),
    ],
)
def test_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ImageDataModule(**arguments)


def test_missing_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install lightning_mp\[vision\]"):
        load_digits(0)
