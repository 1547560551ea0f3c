"""Use the suite with ``pytorch_lightning`` in a process of its own.

Arguments: a folder, and how the package is chosen: ``imported``, ``variable`` or ``blocked``.
"""

import importlib
import os
import sys
from pathlib import Path

HOW = sys.argv[2]
if HOW == "blocked":
    sys.modules["lightning"] = None
elif HOW == "variable":
    os.environ["LIGHTNING_MP_PACKAGE"] = "pytorch_lightning"
    importlib.import_module("lightning.pytorch")
else:
    importlib.import_module("pytorch_lightning")

sys.path.insert(0, str(Path(__file__).parents[1]))
lightning_mp = importlib.import_module("lightning_mp")

import pytorch_lightning as pl  # noqa: E402 - lightning_mp is first, as import sorters have it
import torch  # noqa: E402
from lightning_fabric import Fabric  # noqa: E402
from pytorch_lightning.callbacks import ModelCheckpoint  # noqa: E402
from pytorch_lightning.cli import LightningCLI  # noqa: E402
from pytorch_lightning.demos.boring_classes import BoringDataModule, BoringModel  # noqa: E402

from lightning_mp import callbacks  # noqa: E402
from lightning_mp.cli.info import collect_info  # noqa: E402
from lightning_mp.cli.train import run_trainer  # noqa: E402

FOLDER = Path(sys.argv[1])
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "default_root_dir": FOLDER,
    "num_sanity_val_steps": 0,
    "limit_train_batches": 5,
    "limit_val_batches": 1,
}
CALLBACKS = {
    "DataStallMonitor": {"every_n_steps": 2, "max_wait_fraction": 1.0},
    "GradientNormMonitor": {},
    "LearningRateScaling": {"base_global_batch_size": 1, "warmup_samples": 3},
    "LossCurveMonitor": {"window_steps": 16, "metric": None},
    "MasterGradClip": {"max_norm": 1.0},
    "MemoryBreakdown": {"at_steps": [1, 2]},
    "OverflowLogger": {},
    "RunReport": {},
    "SampleIntervalValidation": {"every_n_samples": 3},
}


def train(num_epochs, ckpt_path=None):
    """Fit with every callback and save a checkpoint; return the final weights."""
    pl.seed_everything(7, verbose=False)
    trainer = pl.Trainer(
        precision="O2-bf16",
        max_epochs=num_epochs,
        callbacks=[
            *(getattr(callbacks, name)(**given) for name, given in CALLBACKS.items()),
            ModelCheckpoint(FOLDER, filename="{epoch}", save_top_k=-1),
        ],
        **QUIET,
    )
    model = BoringModel()
    trainer.fit(model, ckpt_path=ckpt_path)
    assert trainer.global_step > 0
    assert trainer.precision_plugin.precision == "O2-bf16"
    assert isinstance(trainer.precision_plugin, pl.plugins.precision.Precision)
    return torch.cat([item.detach().flatten() for item in model.parameters()])


def check_fit_and_resume():
    whole = train(2)
    assert torch.equal(train(2, ckpt_path=FOLDER / "epoch=0.ckpt"), whole)
    assert not torch.equal(whole.bfloat16().float(), whole)


def check_casts_and_averages():
    average = callbacks.MasterWeightAveraging(decay=0.9)
    plugin = lightning_mp.AmpPrecision("O1", "bf16", allow_banned=True)
    trainer = pl.Trainer(
        plugins=[plugin], max_epochs=1, callbacks=[average], enable_checkpointing=False, **QUIET
    )
    trainer.fit(BoringModel())
    assert trainer.precision_plugin is plugin
    assert plugin.engine.casts is None


def check_fabric():
    for level, dtype in {"O1": torch.float32, "O2-bf16": torch.bfloat16}.items():
        fabric = Fabric(accelerator="cpu", devices=1, precision=level)
        model = torch.nn.Linear(7, 3)
        before = model.weight.detach().clone()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        fabric.backward(model(torch.ones(5, 7)).square().mean())
        optimizer.step()
        assert isinstance(fabric.strategy.precision, lightning_mp.AmpFabricPrecision)
        assert model.weight.dtype == dtype
        assert not torch.equal(model.state_dict()["weight"], before)


def check_warm_up():
    warmup = callbacks.BatchSizeWarmup(2, 4, 8)
    trainer = pl.Trainer(max_epochs=1, callbacks=[warmup], enable_checkpointing=False, **QUIET)
    trainer.fit(BoringModel(), datamodule=BoringDataModule())
    assert trainer.global_step == 5


def check_noise_scale():
    monitor = callbacks.GradientNoiseScaleMonitor()
    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[monitor],
        precision="O2-bf16",
        accumulate_grad_batches=2,
        enable_checkpointing=False,
        **QUIET,
    )
    trainer.fit(BoringModel(), datamodule=BoringDataModule())
    assert float(monitor.noise.estimate().trace) != 0


def check_command_lines():
    listed = [
        {"class_path": f"lightning_mp.callbacks.{name}", "init_args": given}
        for name, given in CALLBACKS.items()
    ]
    args = {"trainer": {**QUIET, "precision": "O2", "max_epochs": 1, "callbacks": listed}}
    args["trainer"]["default_root_dir"] = str(FOLDER)
    cli = LightningCLI(BoringModel, BoringDataModule, args={"subcommand": "fit", "fit": args})
    assert cli.trainer.precision_plugin.opt_level == "O2"
    model = "pytorch_lightning.demos.boring_classes.BoringModel"
    data = "pytorch_lightning.demos.boring_classes.BoringDataModule"
    options = [f"--trainer.{name}={str(value).lower()}" for name, value in QUIET.items()]
    options[4] = f"--trainer.default_root_dir={FOLDER}"
    options += ["--trainer.precision=O3-bf16", "--trainer.max_epochs=1"]
    ours = run_trainer(["fit", f"--model={model}", f"--data={data}", *options])
    assert type(ours.trainer) is lightning_mp.Trainer
    assert isinstance(ours.trainer, pl.Trainer)


def check_the_other_trainer_is_refused():
    import lightning as L

    trainer = L.Trainer(enable_checkpointing=False, logger=False, accelerator="cpu")
    try:
        callbacks.OverflowLogger().setup(trainer, None, "fit")
    except TypeError as error:
        print(error)
    try:
        L.Trainer(plugins=[lightning_mp.AmpPrecision()], accelerator="cpu")
    except L.fabric.utilities.exceptions.MisconfigurationException as error:
        print(error)


if __name__ == "__main__":
    check_fit_and_resume()
    check_casts_and_averages()
    check_fabric()
    check_warm_up()
    check_noise_scale()
    check_command_lines()
    print("in use:", list(collect_info()["versions"])[2])
    if HOW == "imported":
        assert not any(name.partition(".")[0] == "lightning" for name in sys.modules)
    if HOW != "blocked":
        check_the_other_trainer_is_refused()
