"""Build the native libraries; metadata and options live in ``setup.cfg``.

A build without torch or without a C++ compiler, and one that fails, gives a package that works
without them and says so once. ``LIGHTNING_MP_NO_NATIVE=1`` leaves them out on purpose.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import setup

NO_NATIVE_VARIABLE = "LIGHTNING_MP_NO_NATIVE"
O1_FOLDER = Path("csrc", "o1")


def without_native(reason: str) -> None:
    """Say that the package comes without its native library.

    Args:
        reason: What was missing or failed.
    """
    print(
        f"warning: lightning_mp is built without its native library (lightning_mp._O1): {reason}; "
        "O1 then casts in Python, which is slower",
        file=sys.stderr,
    )


def o1_extension(cpp_extension: Any) -> Any:
    """Describe ``lightning_mp._O1``.

    Args:
        cpp_extension: The module ``torch.utils.cpp_extension``.

    Returns:
        The extension.
    """
    # Paths relative to the sources, as setuptools wants them.
    files = sorted(path for path in O1_FOLDER.iterdir() if path.suffix in {".cpp", ".h"})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    return cpp_extension.CppExtension(
        "lightning_mp._O1",
        [path.as_posix() for path in files if path.suffix == ".cpp"],
        depends=[path.as_posix() for path in files if path.suffix == ".h"],
        define_macros=[("LIGHTNING_MP_SOURCE_DIGEST", f'"{digest}"')],
        extra_compile_args=["-O2", "-g0"],
    )


def forgiving(build_ext: type) -> type:
    """Make a build command that leaves out what does not compile.

    Args:
        build_ext: The build command of torch.

    Returns:
        Its subclass.
    """

    class BuildOrLeaveOut(build_ext):
        def build_extensions(self) -> None:
            try:
                super().build_extensions()
            # Whatever stops a compiler: setuptools, torch and subprocess have errors of their own.
            except Exception as error:
                first_line = f"{type(error).__name__}: {error}".splitlines()[0]
                without_native(f"the build failed ({first_line})")
                self.extensions.clear()

    return BuildOrLeaveOut


def native_options() -> dict[str, Any]:
    """Find out what can be built here.

    Returns:
        Arguments of ``setup``.
    """
    if os.environ.get(NO_NATIVE_VARIABLE, "0") not in {"", "0"}:
        without_native(f"{NO_NATIVE_VARIABLE} = {os.environ[NO_NATIVE_VARIABLE]!r}")
        return {}
    try:
        from torch.utils import cpp_extension
    except ImportError:
        without_native(
            "torch is not importable where the build runs; install with --no-build-isolation"
        )
        return {}
    # As in CXX="ccache g++".
    compiler = cpp_extension.get_cxx_compiler().split()[0]
    if shutil.which(compiler) is None:
        without_native(f"no C++ compiler ({compiler!r} is not on PATH; CXX names another)")
        return {}
    return {
        "ext_modules": [o1_extension(cpp_extension)],
        "cmdclass": {"build_ext": forgiving(cpp_extension.BuildExtension)},
    }


setup(**native_options())
