import pytest
import torch

from lightning_mp.recipes.vision.image_set import ImageSet, stratified_split


def make_set(class_counts):
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(class_counts)])
    # Every image holds its own number, so that images can be told apart.
    return ImageSet(torch.arange(len(labels)).reshape(-1, 1, 1), labels)


@pytest.mark.parametrize("num_held_out", [1, 13, 50, 102])
@pytest.mark.parametrize("class_counts", [(103,), (50, 53), (7, 13, 83), (1, 2, 100)])
def test_parts_are_disjoint_whole_and_stratified(class_counts, num_held_out):
    whole = make_set(class_counts)
    rest, held_out = stratified_split(whole, num_held_out, seed=5)
    assert len(held_out) == num_held_out
    together = torch.cat([rest.images, held_out.images]).flatten()
    assert torch.equal(together.sort().values, torch.arange(103))
    for part in (rest, held_out):
        assert torch.equal(part.labels, whole.labels[part.images.flatten()])
    counts = held_out.labels.bincount(minlength=len(class_counts))
    for count, class_count in zip(counts.tolist(), class_counts, strict=True):
        assert abs(count - class_count * num_held_out / 103) <= 1


def test_split_depends_on_its_seed_alone():
    whole = make_set((50, 53))
    torch.manual_seed(1)
    first = stratified_split(whole, 13, seed=0)[1].images
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = stratified_split(whole, 13, seed=0)[1].images
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, second)
    assert not torch.equal(first, stratified_split(whole, 13, seed=1)[1].images)


@pytest.mark.parametrize("num_held_out", [-1, 0, 103, 200])
def test_refuses_an_empty_part(num_held_out):
    with pytest.raises(ValueError, match=f"num_held_out = {num_held_out}; allowed 1 to 102"):
        stratified_split(make_set((50, 53)), num_held_out, seed=0)
