"""ResNet-18 for small images.

Reference:
    K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", 2015. As in
    its section 4.2, the first convolution is 3x3 with stride 1 and no max pool follows, because
    the images are small; the four stages are those of its ImageNet model.
"""

from torch import Tensor, nn
from torch.nn.functional import relu

__all__ = ["ResNet18"]


class ResNet18(nn.Module):
    """Classify small images (such as 32x32) with a residual network of 18 layers.

    Args:
        num_classes: Number of classes.
        in_channels: Number of channels of an image.
        width: Number of channels of the first stage; it doubles with each of the next three.

    Example:
        >>> import torch
        >>> ResNet18(width=8)(torch.zeros(7, 3, 32, 32)).shape
        torch.Size([7, 10])
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv3x3(in_channels, width), nn.BatchNorm2d(width), nn.ReLU())
        self.stages = nn.Sequential(
            _stage(width, width, stride=1),
            _stage(width, 2 * width, stride=2),
            _stage(2 * width, 4 * width, stride=2),
            _stage(4 * width, 8 * width, stride=2),
        )
        self.classifier = nn.Linear(8 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each class.

        Args:
            images: Floating tensor of shape ``(batch, in_channels, height, width)``.

        Returns:
            Logits of shape ``(batch, num_classes)``.
        """
        features = self.stages(self.stem(images))
        return self.classifier(features.mean(dim=(2, 3)))


class _ResidualBlock(nn.Module):
    """Add two 3x3 convolutions to their input; project the input where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv3x3(in_channels, out_channels, stride),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            _conv3x3(out_channels, out_channels),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, inputs: Tensor) -> Tensor:
        return relu(self.residual(inputs) + self.shortcut(inputs))


def _stage(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        _ResidualBlock(in_channels, out_channels, stride),
        _ResidualBlock(out_channels, out_channels, stride=1),
    )


def _conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
