import pytest
import torch
from lightning.pytorch.callbacks import Callback
from support.tolerances import HALF_TRAINING
from support.training import SmallGAN, SmallModule, is_equal, make_loader, make_trainer, weights

from lightning_mp.amp.gradient_clip import ClipRule
from lightning_mp.callbacks import MasterGradClip
from lightning_mp.callbacks.master_grad_clip import clip_optimizer_gradients

PRECISIONS = ["32-true", "bf16-mixed", "bf16-true", "O0", "O2", "O2-bf16", "O3-bf16"]


class SeenNorm(Callback):
    """Reads the norm after the clipping; stands behind MasterGradClip in the list."""

    def __init__(self):
        self.norms = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.norms.append(torch.cat([g.flatten().float() for g in gradients]).norm().item())


def fit(tmp_path, precision, callbacks, module=None, **kwargs):
    module = module or SmallModule()
    make_trainer(tmp_path, precision, callbacks=callbacks, **kwargs).fit(module, make_loader())
    return module


@pytest.mark.parametrize("precision", PRECISIONS)
def test_norm_is_clipped_on_true_gradients(tmp_path, precision):
    free, clipped = SeenNorm(), SeenNorm()
    fit(tmp_path, precision, [free])
    fit(tmp_path, precision, [MasterGradClip(max_norm=0.1), clipped])
    assert min(free.norms) > 0.1
    assert clipped.norms == pytest.approx([0.1] * 8, rel=1e-2)


# Not bf16-true: stock clipping takes the norm of bf16 gradients in bf16 there.
@pytest.mark.parametrize("precision", [item for item in PRECISIONS if item != "bf16-true"])
@pytest.mark.parametrize("limit", [("norm", 0.3), ("value", 0.01)], ids=["norm", "value"])
def test_equals_the_trainers_own_clipping(tmp_path, precision, limit):
    algorithm, value = limit
    stock = fit(tmp_path, precision, [], gradient_clip_val=value, gradient_clip_algorithm=algorithm)
    rule = {"max_norm": value} if algorithm == "norm" else {"clip_value": value}
    module = fit(tmp_path, precision, [MasterGradClip(**rule)])
    for name, weight in weights(module).items():
        torch.testing.assert_close(weight, weights(stock)[name], rtol=1e-6, atol=1e-6)


def test_nothing_is_materialised_for_it(tmp_path):
    class Path(Callback):
        def on_train_end(self, trainer, pl_module):
            engine = trainer.precision_plugin.engine
            self.path = engine.step_of(trainer.optimizers[0]).path

    path = Path()
    fit(tmp_path, "O2", [MasterGradClip(max_norm=0.1), path])
    assert path.path == "fast"


def test_same_result_whether_or_not_somebody_looks(tmp_path):
    plain = fit(tmp_path, "O2", [MasterGradClip(max_norm=0.1)])
    watched = fit(tmp_path, "O2", [MasterGradClip(max_norm=0.1), SeenNorm()])
    assert plain.losses == watched.losses
    assert is_equal(weights(plain), weights(watched))


@pytest.mark.parametrize("norm_type", [1.0, float("inf")])
def test_other_norms(tmp_path, norm_type):
    reference = fit(tmp_path, "32-true", [MasterGradClip(max_norm=0.05, norm_type=norm_type)])
    module = fit(tmp_path, "O2", [MasterGradClip(max_norm=0.05, norm_type=norm_type)])
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(reference)[name], **HALF_TRAINING)


def test_manual_optimisation_with_two_optimizers(tmp_path):
    reference, module = SmallGAN(), SmallGAN()
    reference.clip = 0.05
    fit(tmp_path, "O2", [], reference)
    fit(tmp_path, "O2", [MasterGradClip(max_norm=0.05)], module)
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(reference)[name], rtol=1e-6, atol=1e-6)


def test_trainer_that_clips_as_well_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"gradient_clip_val = 0\.5 and MasterGradClip"):
        fit(tmp_path, "O2", [MasterGradClip(max_norm=0.1)], gradient_clip_val=0.5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "max_norm = None, clip_value = None"),
        ({"max_norm": 1.0, "clip_value": 1.0}, "max_norm = 1.0, clip_value = 1.0"),
        ({"max_norm": 0.0}, "max_norm = 0.0"),
        ({"clip_value": -1.0}, "clip_value = -1.0"),
        ({"max_norm": float("nan")}, "max_norm = nan"),
        ({"max_norm": 1.0, "norm_type": 0.0}, "norm_type = 0.0"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MasterGradClip(**kwargs)


def test_plain_function_in_a_plain_loop():
    weight = torch.nn.Parameter(torch.zeros(3))
    frozen = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([3.0, 0.0, -4.0])
    optimizer = torch.optim.SGD([weight, frozen], lr=0.1)
    norm = clip_optimizer_gradients(optimizer, ClipRule(max_norm=1.0))
    assert norm == 5.0
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, 0.0, -0.8]))
    assert clip_optimizer_gradients(optimizer, ClipRule(clip_value=0.5)) is None
    torch.testing.assert_close(weight.grad, torch.tensor([0.5, 0.0, -0.5]))
