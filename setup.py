"""Build the native libraries; metadata and options live in ``setup.cfg``.

A build without torch or without a C++ compiler, and one that fails, gives a package that works
without them and says so once. ``LIGHTNING_MP_NO_NATIVE=1`` leaves them out on purpose.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

NO_NATIVE_VARIABLE = "LIGHTNING_MP_NO_NATIVE"
SOURCES = Path("csrc")
O1_FOLDERS = ("o1",)
KERNEL_FOLDERS = ("bind", "common", "cpu", "functors")

# The kernels use torch's stable ABI alone, as it is since this release: 2.10.
STABLE_ABI = "0x020a000000000000"
KERNEL_FLAGS = [
    *("-std=c++20", "-O2", "-g0", "-fPIC", "-fvisibility=hidden"),
    # Every instruction set, and a GPU, has to round alike.
    *("-ffp-contract=off", "-fno-math-errno"),
    f"-DTORCH_TARGET_VERSION={STABLE_ABI}",
]
# Files that are built for more than the least machine; which of them runs is chosen at run time.
ISA_FLAGS = {
    "kernels_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "kernels_avx512.cpp": [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq")] + ["-mfma"],
}


def without_native(reason: str) -> None:
    """Say that the package comes without its native libraries.

    Args:
        reason: What was missing or failed.
    """
    print(
        "warning: lightning_mp is built without its native library (lightning_mp._O1, "
        f"lightning_mp._C): {reason}; O1 then casts in Python and steps run as torch operations, "
        "which is slower",
        file=sys.stderr,
    )


def sources(folders: tuple[str, ...], suffixes: set[str]) -> list[Path]:
    """List files of sources.

    Args:
        folders: Folders in ``csrc``.
        suffixes: Suffixes of the files.

    Returns:
        Their paths, relative to this file, as setuptools wants them.
    """
    files = (path for folder in folders for path in (SOURCES / folder).iterdir())
    return sorted(path for path in files if path.suffix in suffixes)


def digest(folders: tuple[str, ...]) -> str:
    """Hash the sources of a library.

    Args:
        folders: Folders in ``csrc``.

    Returns:
        The hash, as a definition for the compiler.
    """
    files = sources(folders, {".cpp", ".h", ".inc"})
    content = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    return f'"{content}"'


def o1_extension(cpp_extension: Any) -> Any:
    """Describe ``lightning_mp._O1``.

    Args:
        cpp_extension: The module ``torch.utils.cpp_extension``.

    Returns:
        The extension.
    """
    return cpp_extension.CppExtension(
        "lightning_mp._O1",
        [path.as_posix() for path in sources(O1_FOLDERS, {".cpp"})],
        depends=[path.as_posix() for path in sources(O1_FOLDERS, {".h"})],
        define_macros=[("LIGHTNING_MP_SOURCE_DIGEST", digest(O1_FOLDERS))],
        extra_compile_args=["-O2", "-g0"],
    )


def kernel_extension() -> Extension:
    """Describe ``lightning_mp._C``, a library of operators that no Python API is linked into.

    Returns:
        The extension.
    """
    return Extension(
        "lightning_mp._C",
        [path.as_posix() for path in sources(KERNEL_FOLDERS, {".cpp"})],
        depends=[path.as_posix() for path in sources(KERNEL_FOLDERS, {".h", ".inc"})],
    )


def build_kernels(compiler: str, cpp_extension: Any, objects: Path, library: Path) -> None:
    """Compile the files of ``lightning_mp._C`` side by side, and link them.

    Args:
        compiler: Command of the C++ compiler.
        cpp_extension: The module ``torch.utils.cpp_extension``.
        objects: Folder for the object files.
        library: Path of the library.
    """
    command = shlex.split(compiler)
    includes = [f"-I{SOURCES}", *(f"-isystem{path}" for path in cpp_extension.include_paths())]
    includes.append(f"-DLIGHTNING_MP_SOURCE_DIGEST={digest(KERNEL_FOLDERS)}")
    is_x86 = platform.machine() in {"x86_64", "AMD64"}

    def compile_file(path: Path) -> str:
        target = objects / path.parent.name / f"{path.stem}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        isa = ISA_FLAGS.get(path.name, []) if is_x86 else []
        run([*command, *KERNEL_FLAGS, *isa, *includes, "-c", str(path), "-o", str(target)])
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(compile_file, sources(KERNEL_FOLDERS, {".cpp"})))
    library.parent.mkdir(parents=True, exist_ok=True)
    # libtorch brings in what libtorch_cuda has where there is one; libtorch_cpu alone does not.
    torch = ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu"]
    folders = [f"-L{path}" for path in cpp_extension.library_paths()]
    run([*command, "-shared", "-o", str(library), *compiled, *folders, *torch])


def run(command: list[str]) -> None:
    """Run a compiler.

    Args:
        command: The command.

    Raises:
        RuntimeError: If it fails; with the first error that it printed.
    """
    print(shlex.join(command))
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        print(finished.stderr, file=sys.stderr)
        errors = [line for line in finished.stderr.splitlines() if "error" in line]
        raise RuntimeError(errors[0] if errors else f"{command[0]} = {finished.returncode}")


def forgiving(build_ext: type, cpp_extension: Any) -> type:
    """Make a build command that leaves out what does not compile.

    Args:
        build_ext: The build command of torch.
        cpp_extension: The module ``torch.utils.cpp_extension``.

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

        def build_extension(self, extension: Extension) -> None:
            if extension.name != "lightning_mp._C":
                super().build_extension(extension)
                return
            library = Path(self.get_ext_fullpath(extension.name))
            compiler = cpp_extension.get_cxx_compiler()
            build_kernels(compiler, cpp_extension, Path(self.build_temp, "kernels"), library)

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
        "ext_modules": [o1_extension(cpp_extension), kernel_extension()],
        "cmdclass": {"build_ext": forgiving(cpp_extension.BuildExtension, cpp_extension)},
    }


setup(**native_options())
