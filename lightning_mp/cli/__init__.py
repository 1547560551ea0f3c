"""The command line ``lightning-mp``."""

from lightning_mp.cli.app import main

__all__ = ["main"]
