"""What loading a native library can find out, in the words that are the same for all of them."""

import torch

__all__ = ["explain_load_failure", "explain_missing", "explain_wrong_torch"]

_REMEDY = "install lightning_mp with --no-build-isolation where torch and a C++ compiler are"


def explain_missing(name: str) -> str:
    """Say that a library is not built.

    Args:
        name: Its name, such as ``lightning_mp._C``.

    Returns:
        The text.
    """
    return f"{name} is not built; {_REMEDY}"


def explain_load_failure(name: str, error: Exception) -> str:
    """Say that a library does not load.

    A missing symbol is how a library shows that it was linked to another torch.

    Args:
        name: Its name.
        error: What the loader raised.

    Returns:
        The text.
    """
    said = str(error).splitlines()[0]
    return f"{name} does not load with torch {torch.__version__} ({said}); {_REMEDY}"


def explain_wrong_torch(name: str, built_for: str) -> str | None:
    """Compare the torch that a library with private symbols was built for with the one that runs.

    Args:
        name: Name of the library.
        built_for: Version of torch that it was built for.

    Returns:
        What is wrong; None if the minor versions are equal.

    Example:
        >>> import torch
        >>> explain_wrong_torch("lightning_mp._O1", torch.__version__) is None
        True
    """
    if _minor(built_for) == _minor(torch.__version__):
        return None
    return f"{name} was built for torch {built_for}, not {torch.__version__}; {_REMEDY}"


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
