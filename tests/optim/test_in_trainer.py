"""The fused optimizers under the Trainer's own precisions, and their checkpoints in others."""

from typing import Any

import lightning as L
import pytest
import torch
from support import tolerances
from support.training import SmallModule, make_loader, make_trainer

from lightning_mp.optim import FusedAdam, FusedAdamW, FusedSGD

PAIRS: list[tuple[Any, Any]] = [
    (FusedAdam, torch.optim.Adam),
    (FusedAdamW, torch.optim.AdamW),
    (FusedSGD, torch.optim.SGD),
]


class Module(SmallModule):
    def __init__(self, optimizer_class: Any) -> None:
        super().__init__()
        self.optimizer_class = optimizer_class

    def configure_optimizers(self) -> Any:
        return self.optimizer_class(self.parameters(), lr=0.01)


class Saver(L.Callback):
    def __init__(self, path: Any) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self.path)


def weights(module: Any) -> list[torch.Tensor]:
    return [item.detach().clone() for item in module.parameters()]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "O2-bf16"])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_trains_as_torchs(tmp_path: Any, ours: Any, theirs: Any, precision: Any) -> None:
    results = []
    # Lightning's mixed precisions do not clip for optimizers that can unscale by themselves.
    clip = None if precision == "bf16-mixed" else 0.5
    for optimizer_class in (ours, theirs):
        module = Module(optimizer_class)
        make_trainer(tmp_path, precision, gradient_clip_val=clip).fit(module, make_loader())
        results.append(weights(module))
    # In bf16-true ours have an FP32 state.
    is_half = precision == "bf16-true"
    close = tolerances.HALF_TRAINING if is_half else tolerances.SAME_MATHS_TRAINED
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("is_to_torch", [True, False])
def test_a_checkpoint_goes_on_with_the_other(
    tmp_path: Any, ours: Any, theirs: Any, is_to_torch: bool
) -> None:
    first, second = (ours, theirs) if is_to_torch else (theirs, ours)
    path = tmp_path / "first.ckpt"
    whole = Module(first)
    make_trainer(tmp_path, max_epochs=2, callbacks=[Saver(path)]).fit(whole, make_loader())
    resumed = Module(second)
    trainer = make_trainer(tmp_path, max_epochs=2)
    trainer.fit(resumed, make_loader(), ckpt_path=path)
    assert trainer.global_step == 16
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        torch.testing.assert_close(one, other, **tolerances.SAME_MATHS_TRAINED)
