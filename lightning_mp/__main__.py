"""Run the command line as ``python -m lightning_mp``."""

from lightning_mp.cli import main

if __name__ == "__main__":
    main()
