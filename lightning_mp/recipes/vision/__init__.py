"""Image classification: digits, MNIST and Fashion-MNIST with a small CNN or ResNet-18."""

from lightning_mp.recipes.vision.classifier import ImageClassifier
from lightning_mp.recipes.vision.cnn import SmallCNN
from lightning_mp.recipes.vision.held_out_accuracy import HeldOutAccuracy
from lightning_mp.recipes.vision.image_data import ImageDataModule
from lightning_mp.recipes.vision.resnet import ResNet18

__all__ = ["HeldOutAccuracy", "ImageClassifier", "ImageDataModule", "ResNet18", "SmallCNN"]
