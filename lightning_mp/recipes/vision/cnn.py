"""A small convolutional network for images from 8x8 pixels on."""

from torch import Tensor, nn

__all__ = ["SmallCNN"]


class SmallCNN(nn.Module):
    """Classify small images with three convolutions and one linear layer.

    Each convolution is 3x3 and followed by BatchNorm and ReLU; the first two are followed by a
    2x2 max pool as well. The mean over all places that remain feeds the linear layer, so every
    image size from 4x4 on works.

    Args:
        width: Number of channels after the first convolution; it doubles with each further one.
        num_classes: Number of classes.
        in_channels: Number of channels of an image.

    Raises:
        ValueError: ``width`` is below 1.

    Example:
        >>> import torch
        >>> SmallCNN(width=8)(torch.zeros(7, 1, 28, 28)).shape
        torch.Size([7, 10])
    """

    def __init__(self, width: int = 32, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width = {width}; allowed 1 or more; 32 is usual")
        self.features = nn.Sequential(
            _conv_block(in_channels, width),
            nn.MaxPool2d(2),
            _conv_block(width, 2 * width),
            nn.MaxPool2d(2),
            _conv_block(2 * width, 4 * width),
        )
        self.classifier = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each class.

        Args:
            images: Floating tensor of shape ``(batch, in_channels, height, width)``.

        Returns:
            Logits of shape ``(batch, num_classes)``.
        """
        return self.classifier(self.features(images).mean(dim=(2, 3)))


def _conv_block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )
