"""Mixed precision, fused kernels, heterogeneous devices and batch-size control for Lightning."""

from lightning_mp.__about__ import __version__ as __version__
