import math

import pytest

from benchkit.step_lists import STEP_LISTS, list_title, make_shapes


@pytest.mark.parametrize(
    ("name", "num_tensors", "numel"),
    [
        # The published sizes of these models.
        ("gpt2", 148, 124_439_808),
        ("resnet50", 161, 25_557_032),
    ],
)
def test_a_list_is_that_of_the_model(name, num_tensors, numel):
    shapes = make_shapes(name)
    assert len(shapes) == num_tensors
    assert sum(map(math.prod, shapes)) == numel


def test_small_tensors_are_small():
    sizes = [size for (size,) in make_shapes("small")]
    assert len(sizes) == 2000
    assert min(sizes) >= 2**10
    assert max(sizes) <= 2**16
    # Log-uniform: as many below the geometric mean as above.
    assert sum(size < 2**13 for size in sizes) == pytest.approx(1000, abs=70)


@pytest.mark.parametrize("name", STEP_LISTS)
def test_a_smoke_list_is_tiny(name):
    shapes = make_shapes(name, is_smoke=True)
    assert 0 < sum(map(math.prod, shapes)) < 200_000
    assert all(min(shape) > 0 for shape in shapes)
    assert list_title(name)


def test_an_unknown_list_is_refused():
    with pytest.raises(ValueError, match="list = 'vgg'; allowed are gpt2, small, resnet50"):
        make_shapes("vgg")
