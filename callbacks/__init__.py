"""Lightning callbacks; import as ``lightning_mp.callbacks``."""

if __name__ != "lightning_mp.callbacks":
    raise ImportError(f"import this package as 'lightning_mp.callbacks', not as {__name__!r}")

from lightning_mp.callbacks.run_report import RunReport

__all__ = ["RunReport"]
