"""The machine code of every kernel for all GPUs that are built for. None of it runs here."""

import re
from pathlib import Path

import pytest
from support.machine_code import (
    ARCHITECTURES,
    NVCC,
    KernelCode,
    compile_kernels,
    disassembler,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH"),
    pytest.mark.skipif(disassembler() is None, reason="no cuobjdump: install the extra dev"),
    pytest.mark.timeout(1200),
]
SOURCES = Path(__file__).parents[2] / "csrc" / "cuda"
MAX_REGISTERS = 80
# Those whose time is that of memory, with the accesses that each has to make in packs.
STREAMING = {
    "step_kernel": ("LDG.E.128", "STG.E.128"),
    "map_kernel": ("LDG.E.128", "STG.E.128"),
    "split_kernel": ("LDG.E.128", "STG.E.128"),
    "sum_of_squares_kernel": ("LDG.E.128",),
    "cross_entropy_forward_kernel": ("LDG.E.128",),
    "cross_entropy_backward_kernel": ("LDG.E.128", "STG.E.128"),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[KernelCode]:
    folder = tmp_path_factory.mktemp("objects")
    return [
        kernel
        for source in sorted(SOURCES.glob("*.cu"))
        for kernel in compile_kernels(source, folder)
    ]


def names_of(kernels: list[KernelCode]) -> list[str]:
    return [f"{kernel.name} for sm_{kernel.architecture}" for kernel in kernels]


def test_every_kernel_is_built_for_every_architecture(kernels: list[KernelCode]) -> None:
    defined = set[str]()
    for path in SOURCES.iterdir():
        defined |= set(re.findall(r"__global__[^;{]*?(\w+_kernel)\(", path.read_text()))

    missing = [
        (name, architecture)
        for name in sorted(defined)
        for architecture in ARCHITECTURES
        if not any(
            name in kernel.name and kernel.architecture == architecture for kernel in kernels
        )
    ]

    assert defined
    assert not missing


def test_nothing_is_spilled(kernels: list[KernelCode]) -> None:
    spilling = [kernel for kernel in kernels if kernel.num_spilled_bytes or kernel.num_stack_bytes]

    assert not names_of(spilling)


def test_registers_leave_room_for_enough_threads(kernels: list[KernelCode]) -> None:
    large = [kernel for kernel in kernels if kernel.num_registers > MAX_REGISTERS]

    assert not names_of(large)


def test_memory_is_known_to_be_global(kernels: list[KernelCode]) -> None:
    # LD and ST look up at run time which memory an address is in.
    generic = [
        kernel
        for kernel in kernels
        if any(re.match(r"(LD|ST)\.", name) for name in kernel.instructions)
    ]

    assert not names_of(generic)


@pytest.mark.parametrize("name", STREAMING)
def test_packs_are_16_bytes(kernels: list[KernelCode], name: str) -> None:
    found = [kernel for kernel in kernels if name in kernel.name]
    narrow = [
        kernel
        for kernel in found
        if not all(
            any(instruction.startswith(access) for instruction in kernel.instructions)
            for access in STREAMING[name]
        )
    ]

    assert found
    assert not names_of(narrow)


def test_statistics_have_four_lines_in_flight(kernels: list[KernelCode]) -> None:
    for kernel in kernels:
        if "sum_of_squares_kernel" in kernel.name:
            # Four of each half type, and eight of FP32.
            wide = sum(
                count for name, count in kernel.instructions.items() if name.startswith("LDG.E.128")
            )
            assert wide >= 4 + 4 + 8, f"sm_{kernel.architecture}"
