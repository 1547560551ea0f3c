import pytest

from lightning_mp.recipes.vision.schedule import warmup_cosine


@pytest.mark.parametrize(
    ("step", "epoch", "warmup_steps", "num_epochs", "expected"),
    [
        (0, 0, 10, 20, 0.1),
        (9, 0, 10, 20, 1.0),
        (700, 0, 10, 20, 1.0),
        (700, 10, 10, 20, 0.5),
        (4, 10, 10, 20, 0.25),
        (0, 0, 0, 20, 1.0),
        (700, 2, 10, 3, 0.25),
        (700, 3, 10, 3, 0.25),
        (700, 99, 10, -1, 1.0),
    ],
)
def test_factor(step, epoch, warmup_steps, num_epochs, expected):
    factor = warmup_cosine(step, epoch, warmup_steps=warmup_steps, num_epochs=num_epochs)
    assert factor == pytest.approx(expected)
