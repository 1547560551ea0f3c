"""Build the native libraries; metadata and options live in ``setup.cfg``.

A build without torch or without a C++ compiler, and one that fails, gives a package that works
without them and says so once. ``LIGHTNING_MP_NO_NATIVE=1`` leaves them out on purpose. Kernels for
NVIDIA GPUs are built where nvcc is and torch was built for the same CUDA; ``LIGHTNING_MP_CUDA=0``
leaves them out, ``1`` builds them for any torch.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

NO_NATIVE_VARIABLE = "LIGHTNING_MP_NO_NATIVE"
CUDA_VARIABLE = "LIGHTNING_MP_CUDA"
SOURCES = Path("csrc")
# What it means that a library is not there.
CONSEQUENCES = {
    "lightning_mp._O1": "O1 then casts in Python, which is slower",
    "lightning_mp._C": "steps then run as torch operations, which is slower",
    "lightning_mp._fl": "there is then no device fl",
}
O1_FOLDERS = ("o1",)
FL_FOLDERS = ("fl", "fl/bind", "fl/dispatch", "fl/memory", "fl/operators", "fl/runtime")
# Minor versions of torch that the device works with; it uses what is private there.
FL_TORCH_MINORS = ("2.13",)
KERNEL_FOLDERS = ("bind", "common", "cpu", "cuda", "functors")
# Files of bind/ that only the kernels for GPUs need.
CUDA_PREFIX = "cuda_"
# Files of cpu/ that are long to compile, or have an instruction set of their own.
KERNELS_PREFIX = "kernels_"

# The kernels use torch's stable ABI alone, as it is since this release: 2.10.
STABLE_ABI = "0x020a000000000000"
COMMON_FLAGS = ["-std=c++20", "-O2", "-g0", "-fPIC", "-fvisibility=hidden"]
KERNEL_FLAGS = [
    *COMMON_FLAGS,
    # Every instruction set, and a GPU, has to round alike.
    *("-ffp-contract=off", "-fno-math-errno"),
    f"-DTORCH_TARGET_VERSION={STABLE_ABI}",
]
FL_FLAGS = [*COMMON_FLAGS, "-DAT_PER_OPERATOR_HEADERS"]
# Files that are built for more than the least machine; which of them runs is chosen at run time.
ISA_FLAGS = {
    "kernels_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "kernels_avx512.cpp": [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq")] + ["-mfma"],
}
# GPUs that machine code is made for, as far as nvcc knows them; later ones translate the last.
ARCHITECTURES = (80, 90, 100)
NVCC_FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-Xcompiler=-fPIC,-fvisibility=hidden"]


def without_native(reason: str, names: Iterable[str] = CONSEQUENCES) -> None:
    """Say that the package comes without native libraries.

    Args:
        reason: What was missing or failed.
        names: The libraries that are left out.
    """
    print(
        f"warning: lightning_mp is built without its native library ({', '.join(names)}): "
        f"{reason}; {'; '.join(CONSEQUENCES[name] for name in names)}",
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
    """Hash the sources of a library; the result is the value of a definition."""
    files = sources(folders, {".cpp", ".h", ".inc", ".cu", ".cuh"})
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


def plain_extension(name: str, folders: tuple[str, ...]) -> Extension:
    """Describe a library of operators that no Python API is linked into.

    Args:
        name: Its name.
        folders: Folders in ``csrc``.

    Returns:
        The extension.
    """
    return Extension(
        name,
        [path.as_posix() for path in sources(folders, {".cpp"})],
        depends=[path.as_posix() for path in sources(folders, {".h", ".inc", ".cu", ".cuh"})],
    )


def fl_extensions() -> list[Extension]:
    """Describe ``lightning_mp._fl``, and say so if this torch is none that it is written for.

    Returns:
        The extension, or nothing.
    """
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    if minor in FL_TORCH_MINORS:
        return [plain_extension("lightning_mp._fl", FL_FOLDERS)]
    without_native(
        f"torch {minor} is not one of {', '.join(FL_TORCH_MINORS)}", ["lightning_mp._fl"]
    )
    return []


def find_nvcc(cpp_extension: Any) -> str | None:
    """Find the compiler of kernels for GPUs, and say so if it cannot be used.

    Args:
        cpp_extension: The module ``torch.utils.cpp_extension``.

    Returns:
        Its path, or ``None`` where there is none or it does not fit torch.
    """
    import torch

    wish = os.environ.get(CUDA_VARIABLE, "")
    home = cpp_extension.CUDA_HOME
    nvcc = shutil.which("nvcc", path=Path(home, "bin").as_posix() if home else None)
    if nvcc is None or wish == "0" or (torch.version.cuda is None and wish != "1"):
        return None
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)", said)
    needed = (torch.version.cuda or "").split(".")[0]
    if wish == "1" or (release and release[1] == needed):
        return nvcc
    found = f"CUDA {release[1]}" if release else "an unknown CUDA"
    print(
        f"warning: lightning_mp is built without kernels for GPUs: {nvcc} is of {found}, torch of "
        f"CUDA {needed}; steps on GPUs then run as torch operations, which is slower",
        file=sys.stderr,
    )
    return None


def gpu_flags(nvcc: str) -> tuple[str, list[str]]:
    """Say which GPUs are built for.

    Args:
        nvcc: Path of nvcc.

    Returns:
        The architectures in words, and the arguments of nvcc.
    """
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    numbers = [number for number in ARCHITECTURES if f"compute_{number}" in known.split()]
    flags = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers[:-1]]
    last = numbers[-1]
    flags.append(f"-gencode=arch=compute_{last},code=[sm_{last},compute_{last}]")
    return ", ".join(f"sm_{number}" for number in numbers), flags


def join_sources(files: list[Path], folder: Path) -> list[Path]:
    """Join files of which most of the compile time goes into the headers that they share.

    Args:
        files: Sources.
        folder: Folder for files that include them.

    Returns:
        What is to be compiled, what takes longest first.
    """
    alone: list[Path] = []
    groups: dict[str, list[str]] = {}
    for path in files:
        if path.suffix == ".cu" or path.name.startswith(KERNELS_PREFIX):
            alone.append(path)
        else:
            prefix = CUDA_PREFIX if path.name.startswith(CUDA_PREFIX) else ""
            include = f'#include "{path.relative_to(SOURCES).as_posix()}"\n'
            groups.setdefault(f"{prefix}{path.parent.name}.cpp", []).append(include)
    folder.mkdir(parents=True, exist_ok=True)
    for name, includes in groups.items():
        (folder / name).write_text("".join(includes))
    alone.sort(key=lambda path: path.suffix != ".cu")
    return [*alone, *(folder / name for name in groups)]


def build_kernels(compiler: str, cpp_extension: Any, objects: Path, library: Path) -> None:
    """Build ``lightning_mp._C``.

    Args:
        compiler: Command of the C++ compiler.
        cpp_extension: The module ``torch.utils.cpp_extension``.
        objects: Folder for the object files.
        library: Path of the library.
    """
    command = shlex.split(compiler)
    includes = [f"-I{SOURCES}", *(f"-isystem{path}" for path in cpp_extension.include_paths())]
    includes.append(f"-DLIGHTNING_MP_SOURCE_DIGEST={digest(KERNEL_FOLDERS)}")
    nvcc = find_nvcc(cpp_extension)
    architectures, gencode = gpu_flags(nvcc) if nvcc else ("", [])
    includes.append(f'-DLIGHTNING_MP_GPU_ARCHITECTURES="{architectures}"')
    # Not a command of several words, which nvcc does not take.
    host = ["-ccbin", command[0]] if len(command) == 1 else []
    is_x86 = platform.machine() in {"x86_64", "AMD64"}

    def tool_for(path: Path) -> list[str]:
        if path.suffix == ".cu":
            return [str(nvcc), *host, *NVCC_FLAGS, *gencode, f"-I{SOURCES}"]
        isa = ISA_FLAGS.get(path.name, []) if is_x86 else []
        return [*command, *KERNEL_FLAGS, *isa, *includes]

    files = sources(KERNEL_FOLDERS, {".cpp", ".cu"} if nvcc else {".cpp"})
    if not nvcc:
        files = [path for path in files if not path.name.startswith(CUDA_PREFIX)]
    compiled = compile_files(join_sources(files, objects / "joined"), tool_for, objects)
    # nvcc adds the CUDA runtime, which is linked statically.
    link([nvcc, *host] if nvcc else command, compiled, cpp_extension, library)


def build_fl(compiler: str, cpp_extension: Any, objects: Path, library: Path) -> None:
    """Build ``lightning_mp._fl``.

    Args:
        compiler: Command of the C++ compiler.
        cpp_extension: The module ``torch.utils.cpp_extension``.
        objects: Folder for the object files.
        library: Path of the library.
    """
    command = shlex.split(compiler)
    includes = [f"-I{SOURCES}", *(f"-isystem{path}" for path in cpp_extension.include_paths())]
    includes.append(f"-DLIGHTNING_MP_SOURCE_DIGEST={digest(FL_FOLDERS)}")
    files = join_sources(sources(FL_FOLDERS, {".cpp"}), objects / "joined")
    compiled = compile_files(files, lambda _: [*command, *FL_FLAGS, *includes], objects)
    link(command, compiled, cpp_extension, library)


def compile_files(
    files: list[Path], tool_for: Callable[[Path], list[str]], objects: Path
) -> list[str]:
    """Compile files side by side.

    Args:
        files: Sources, what takes longest first.
        tool_for: Gives the compiler of a file, with its arguments.
        objects: Folder for the object files.

    Returns:
        Paths of the object files.
    """

    def compile_file(path: Path) -> str:
        target = objects / path.parent.name / f"{path.name}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        run([*tool_for(path), "-c", str(path), "-o", str(target)])
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_file, files))


def link(linker: list[str], compiled: list[str], cpp_extension: Any, library: Path) -> None:
    """Link object files to a library that uses torch.

    Args:
        linker: Command that links.
        compiled: Paths of object files.
        cpp_extension: The module ``torch.utils.cpp_extension``.
        library: Path of the library.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    # libtorch brings in what libtorch_cuda has where there is one; libtorch_cpu alone does not.
    torch = ["-Xlinker", "--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    folders = [f"-L{path}" for path in cpp_extension.library_paths()]
    run([*linker, "-shared", "-o", str(library), *compiled, *folders, *torch])


# Libraries that setuptools would link to Python.
PLAIN_BUILDS = {"lightning_mp._C": build_kernels, "lightning_mp._fl": build_fl}


def run(command: list[str]) -> None:
    """Run a compiler; if it fails, raise the first error that it printed."""
    print(shlex.join(command))
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        print(finished.stderr, file=sys.stderr)
        errors = [line for line in finished.stderr.splitlines() if "error" in line]
        raise RuntimeError(errors[0] if errors else f"{command[0]} = {finished.returncode}")


def forgiving(build_ext: type, cpp_extension: Any) -> type:
    """Subclass torch's build command: it leaves out what does not compile."""

    class BuildOrLeaveOut(build_ext):
        def build_extensions(self) -> None:
            self.failures: dict[str, Exception] = {}
            try:
                super().build_extensions()
            # Whatever stops a compiler: setuptools, torch and subprocess have errors of their own.
            except Exception as error:
                self.failures = {extension.name: error for extension in self.extensions}
            if self.failures:
                error = next(iter(self.failures.values()))
                first_line = f"{type(error).__name__}: {error}".splitlines()[0]
                without_native(f"the build failed ({first_line})", self.failures)
            self.extensions[:] = [
                item for item in self.extensions if item.name not in self.failures
            ]

        def build_extension(self, extension: Extension) -> None:
            try:
                build = PLAIN_BUILDS.get(extension.name)
                if build is None:
                    super().build_extension(extension)
                else:
                    self.build_plain(extension, build)
            # One library is of use without the other.
            except Exception as error:
                self.failures[extension.name] = error

        def build_plain(self, extension: Extension, build: Callable[..., None]) -> None:
            library = Path(self.get_ext_fullpath(extension.name))
            compiler = cpp_extension.get_cxx_compiler()
            objects = Path(self.build_temp, extension.name.rpartition(".")[2])
            build(compiler, cpp_extension, objects, library)

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
        "ext_modules": [
            o1_extension(cpp_extension),
            plain_extension("lightning_mp._C", KERNEL_FOLDERS),
            *fl_extensions(),
        ],
        "cmdclass": {"build_ext": forgiving(cpp_extension.BuildExtension, cpp_extension)},
    }


setup(**native_options())
