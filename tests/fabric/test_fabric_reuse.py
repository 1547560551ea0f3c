"""Methods beside forward, and models that go from one Fabric to the next."""

import pytest
import torch
from support.engine import Mlp, make_batches
from support.fabric import make_adam, make_fabric, start, train
from support.tolerances import HALF_TRAINING
from support.training import is_equal, weights
from torch.nn import functional as F

LEVELS = ["O1", "O1-bf16", "O2", "O2-bf16", "O3-bf16"]


class WithLoss(Mlp):
    def loss(self, inputs, targets):
        return F.mse_loss(self.first(inputs).mean(dim=1), targets.mean(dim=1))


@pytest.mark.parametrize("level", LEVELS)
def test_another_method_runs_at_the_level_in_autocast(level):
    losses = {}
    for precision in ("32-true", level):
        fabric, model, optimizer = start(precision, model=WithLoss())
        model.mark_forward_method("loss")
        seen = []
        model.first.register_forward_hook(lambda *call, seen=seen: seen.append(call[2].dtype))
        for inputs, targets in make_batches(3):
            with fabric.autocast():
                loss = model.loss(inputs, targets)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.setdefault(precision, []).append(loss.item())
        half = torch.bfloat16 if precision.endswith("bf16") else torch.float16
        assert set(seen) == {torch.float32 if precision == "32-true" else half}
    assert losses[level] == pytest.approx(losses["32-true"], rel=HALF_TRAINING["rtol"])


@pytest.mark.parametrize("level", ["O2", "O2-bf16", "O3-bf16"])
def test_a_model_of_another_fabric_is_taken_after_its_teardown(level):
    first, model, optimizer = start(level)
    train(first, model, optimizer)
    trained = weights(model)
    bare = model.module
    with pytest.raises(ValueError, match=r"call fabric\.strategy\.precision\.teardown\(\) first"):
        make_fabric(level).setup(bare, make_adam(bare.parameters()))
    assert is_equal(weights(model), trained)
    first.strategy.precision.teardown()
    second = make_fabric(level)
    model, optimizer = second.setup(bare, make_adam(bare.parameters()))
    assert is_equal(weights(model), trained)
    train(second, model, optimizer)
    assert not is_equal(weights(model), trained)
