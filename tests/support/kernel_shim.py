"""The CUDA kernels as a library that runs on the CPU, side by side with the CPU's own kernels."""

import os
import shlex
import subprocess
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

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
        units: Files that variants compile again, relative to ``csrc``.
    """

    sources: Path
    folder: Path
    units: Collection[str]
    _objects: dict[str, Path] = field(default_factory=dict)

    def clean(self) -> Path:
        """Build the library from the sources as they are, and return its path."""
        self._make_stub()
        alone: list[Path] = []
        joined: dict[str, list[Path]] = {"bind": [self.sources / "shim/library.cpp"], "cpu": []}
        for folder in ("cpu", "cuda", "bind"):
            for path in sorted((self.sources / folder).iterdir()):
                if path.suffix not in {".cpp", ".cu"} or path.name in REPLACED:
                    continue
                is_kernel = path.suffix == ".cu" or path.name.startswith("kernels_")
                if is_kernel or self._relative(path) in self.units:
                    alone.append(path)
                else:
                    joined[folder].append(path)
        files = [*alone, self.sources / "shim/shim.cpp"]
        files += [self._join(name, members) for name, members in joined.items()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = pool.map(lambda path: self._compile(path, self.sources, "clean"), files)
            self._objects = dict(zip(map(self._relative, files), objects, strict=True))
        return self._link("clean", self._objects)

    def variant(self, name: str, change: tuple[str, str, str], unit: str) -> Path:
        """Build the library with a text replaced in one file.

        Args:
            name: Name of the variant.
            change: The file, relative to ``csrc``, its old text, which occurs once, and the new.
            unit: The only file that is compiled again, one of ``units``.

        Returns:
            Path of the library.
        """
        changed = self.folder / name / "csrc"
        for folder in ("bind", "common", "cuda", "functors", "shim"):
            target = changed / folder
            target.mkdir(parents=True)
            for path in (self.sources / folder).iterdir():
                (target / path.name).write_text(path.read_text())
        file, old, new = change
        text = (changed / file).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file} has {text.count(old)} times {old!r}; 1 is needed")
        (changed / file).write_text(text.replace(old, new))
        unit_object = self._compile(changed / unit, changed, name)
        return self._link(name, {**self._objects, unit: unit_object})

    def _relative(self, path: Path) -> str:
        is_source = path.is_relative_to(self.sources)
        return path.relative_to(self.sources).as_posix() if is_source else path.name

    def _join(self, name: str, files: list[Path]) -> Path:
        # Most of their compile time goes into headers, which one file reads once.
        path = self.folder / f"{name}.cpp"
        path.write_text("".join(f'#include "{self._relative(item)}"\n' for item in files))
        return path

    def _compile(self, path: Path, sources: Path, name: str) -> Path:
        target = self.folder / name / path.parent.name / f"{path.name}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        is_kernel = path.suffix == ".cu"
        extra = [*SANITIZER, "-x", "c++"] if is_kernel else ISA_FLAGS.get(path.name, [])
        includes = [f"-I{sources / 'shim'}", f"-I{sources}"]
        includes += [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
        _run([*_compiler(), *FLAGS, *includes, *extra, "-c", str(path), "-o", str(target)])
        return target

    def _make_stub(self) -> None:
        """Make an empty library of the name of torch's, which takes a linker a while to read."""
        self._stub.parent.mkdir()
        source = self.folder / "stub.cpp"
        source.touch()
        _run(
            [
                *_compiler(),
                "-shared",
                "-Wl,-soname,libtorch_cpu.so",
                "-o",
                str(self._stub),
                str(source),
            ]
        )

    @property
    def _stub(self) -> Path:
        return self.folder / "stub" / "libtorch_cpu.so"

    def _link(self, name: str, objects: Mapping[str, Path]) -> Path:
        library = self.folder / name / "libshim.so"
        files = [str(path) for path in objects.values()]
        # By that name the process has torch's own when it loads this library.
        needed = ["-Wl,--no-as-needed", str(self._stub)]
        _run([*_compiler(), "-shared", "-o", str(library), *files, *needed])
        return library


def _compiler() -> list[str]:
    return shlex.split(cpp_extension.get_cxx_compiler())


def _run(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{finished.stderr[-4000:]}")
