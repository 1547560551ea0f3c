import pytest
import torch

from lightning_mp.recipes.vision import ResNet18, SmallCNN


@pytest.mark.parametrize("size", [4, 8, 28])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_small_cnn_takes_any_image_size(size, batch_size):
    network = SmallCNN(width=5, num_classes=13).eval()
    assert network(torch.zeros(batch_size, 1, size, size)).shape == (batch_size, 13)


@pytest.mark.parametrize(("size", "in_channels"), [(8, 1), (28, 1), (32, 3)])
def test_resnet_takes_small_images(size, in_channels):
    network = ResNet18(num_classes=7, in_channels=in_channels, width=4).eval()
    assert network(torch.zeros(3, in_channels, size, size)).shape == (3, 7)


def test_resnet_has_the_parameters_of_the_paper():
    # torchvision's ResNet-18 has 11,689,512: 9,408 in the 7x7 stem, 513,000 in the head.
    network = ResNet18(num_classes=10, in_channels=3)
    num_expected = 11_689_512 - 9_408 + 3 * 64 * 9 - 513_000 + 5_130
    assert sum(p.numel() for p in network.parameters()) == num_expected


@pytest.mark.parametrize("network", [SmallCNN(width=5), ResNet18(in_channels=1, width=4)])
def test_every_parameter_gets_a_gradient(network):
    network(torch.randn(7, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
