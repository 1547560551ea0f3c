"""The CUDA kernels as a library that runs on the CPU, side by side with the CPU's own kernels."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils import cpp_extension

# What the shim replaces: torch's stream, and the registration for a device that is not here.
REPLACED = {"cuda_library.cpp", "cuda_stream.cpp"}
FLAGS = [
    *("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-w"),
    *("-ffp-contract=off", "-fno-math-errno"),
    "-DTORCH_TARGET_VERSION=0x020a000000000000",
    '-DLIGHTNING_MP_SOURCE_DIGEST="shim"',
    '-DLIGHTNING_MP_GPU_ARCHITECTURES=""',
]
# A misaligned access or an index outside an array stops the process.
SANITIZER = ["-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"]
ISA_FLAGS = {
    "kernels_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "kernels_avx512.cpp": [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq")] + ["-mfma"],
}


@dataclass
class ShimBuild:
    """Compiles and links the library, and variants of it with changed files.

    Args:
        sources: The folder ``csrc``.
        folder: Where objects and libraries go.
    """

    sources: Path
    folder: Path
    _objects: dict[Path, Path] = field(default_factory=dict)

    def clean(self) -> Path:
        """Build the library from the sources as they are, and return its path."""
        files = [
            path
            for name in ("bind", "cpu", "shim", "cuda")
            for path in sorted((self.sources / name).iterdir())
            if path.suffix in {".cpp", ".cu"} and path.name not in REPLACED
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = pool.map(lambda path: self._compile(path, self.sources, "clean"), files)
            relative = (path.relative_to(self.sources) for path in files)
            self._objects = dict(zip(relative, objects, strict=True))
        return self._link("clean", self._objects)

    def variant(self, name: str, changes: Mapping[str, tuple[str, str]], unit: str) -> Path:
        """Build the library with texts replaced in some files.

        Args:
            name: Name of the variant.
            changes: Old and new text by file, relative to ``csrc``; the old one occurs once.
            unit: The only file that is compiled again, relative to ``csrc``.

        Returns:
            Path of the library.
        """
        changed = self.folder / name / "csrc"
        for folder in ("bind", "common", "cuda", "functors", "shim"):
            target = changed / folder
            target.mkdir(parents=True)
            for path in (self.sources / folder).iterdir():
                (target / path.name).write_text(path.read_text())
        for file, (old, new) in changes.items():
            text = (changed / file).read_text()
            if text.count(old) != 1:
                raise ValueError(f"{file} has {text.count(old)} times {old!r}; 1 is needed")
            (changed / file).write_text(text.replace(old, new))
        unit_object = self._compile(changed / unit, changed, name)
        return self._link(name, {**self._objects, Path(unit): unit_object})

    def _compile(self, path: Path, sources: Path, name: str) -> Path:
        target = self.folder / name / path.parent.name / f"{path.name}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        is_kernel = path.suffix == ".cu"
        extra = [*SANITIZER, "-x", "c++"] if is_kernel else ISA_FLAGS.get(path.name, [])
        includes = [f"-I{sources / 'shim'}", f"-I{sources}"]
        includes += [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
        _run([*_compiler(), *FLAGS, *includes, *extra, "-c", str(path), "-o", str(target)])
        return target

    def _link(self, name: str, objects: Mapping[Path, Path]) -> Path:
        library = self.folder / name / "libshim.so"
        folder = Path(torch.__file__).parent / "lib"
        files = [str(path) for path in objects.values()]
        torch_libraries = [f"-L{folder}", "-ltorch", "-ltorch_cpu"]
        _run([*_compiler(), "-shared", "-o", str(library), *files, *torch_libraries])
        return library


def _compiler() -> list[str]:
    return shlex.split(cpp_extension.get_cxx_compiler())


def _run(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{finished.stderr[-4000:]}")
