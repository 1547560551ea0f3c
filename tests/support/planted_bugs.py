"""Mistakes in the CUDA sources, each of which a check of the kernel shim has to find."""

from typing import NamedTuple


class PlantedBug(NamedTuple):
    """A replaced text.

    Args:
        file: File in ``csrc``.
        old: What is there; it occurs once.
        new: What takes its place.
        unit: The file that is compiled again.
        check: The check that has to fail.
    """

    file: str
    old: str
    new: str
    unit: str
    check: str


ADAM, ROUNDED = "cuda/adam.cu", "cuda/rounded_adam.cu"
NORM, MAP = "cuda/norm.cu", "cuda/map.cu"
CROSS_ENTROPY = "cuda/cross_entropy.cu"
BARRIER = "    __syncthreads();\n"

PLANTED_BUGS: dict[str, PlantedBug] = {
    "last pack reaches over the end": PlantedBug(
        "cuda/chunks.cuh",
        "chunk.count / kWidth * kWidth",
        "(chunk.count + kWidth - 1) / kWidth * kWidth",
        ADAM,
        "step_memory",
    ),
    "stride without the width of a pack": PlantedBug(
        "cuda/chunks.cuh",
        "static_cast<int>(blockDim.x) * kWidth;",
        "static_cast<int>(blockDim.x);",
        ADAM,
        "steps",
    ),
    "start of a chunk within its row forgotten": PlantedBug(
        "cuda/chunks.cuh",
        "(chunk - table.first_chunks[low]) * chunk_size",
        "chunk * chunk_size",
        ADAM,
        "steps",
    ),
    "row search ends early": PlantedBug(
        "cuda/chunks.cuh", "high - low > 1", "high - low > 2", ADAM, "steps"
    ),
    "row search skips a row": PlantedBug(
        "cuda/chunks.cuh",
        "table.first_chunks[middle] <= chunk",
        "table.first_chunks[middle] < chunk",
        ADAM,
        "steps",
    ),
    "place in a row of 32 bits": PlantedBug(
        "cuda/chunks.cuh", "const int64_t begin =", "const int begin =", ADAM, "huge_rows"
    ),
    "alignment of gradients not tested": PlantedBug(
        "cuda/step.cuh",
        "for (int role = 0; role <",
        "for (int role = 1; role <",
        ADAM,
        "step_memory",
    ),
    "alignment of second moments not tested": PlantedBug(
        "cuda/step.cuh",
        "role < kFirstState + kNumStates;",
        "role < kFirstState + kNumStates - 1;",
        ADAM,
        "step_memory",
    ),
    "shared row overwritten while it is read": PlantedBug(
        "cuda/step.cuh",
        "    step_chunk<Rule>(chunk, row, scalars, options);\n" + BARRIER,
        "    step_chunk<Rule>(chunk, row, scalars, options);\n",
        ADAM,
        "step_orders",
    ),
    "shared row read before it is there": PlantedBug(
        "cuda/step.cuh",
        BARRIER + "    step_chunk<Rule>(chunk",
        "    step_chunk<Rule>(chunk",
        ADAM,
        "step_orders",
    ),
    "scalars of the first row for all": PlantedBug(
        "cuda/step.cuh", "source.of_row(chunk.row)", "source.of_row(0)", ADAM, "steps"
    ),
    "flag of an overflow not read": PlantedBug(
        "cuda/step.cuh", "  if (is_skipped(found_inf)) return;\n", "", ADAM, "skipped_steps"
    ),
    "last gradients of a row not zeroed": PlantedBug(
        "cuda/step.cuh", "store_float(0.0f, row", "load_float(row", ADAM, "steps"
    ),
    "random numbers of a pack those of its start": PlantedBug(
        "cuda/step.cuh", "(scalars, index + k)", "(scalars, index)", ROUNDED, "rounded_steps"
    ),
    "random numbers of last elements counted from 0": PlantedBug(
        "cuda/step.cuh",
        "random_of<Rule>(scalars, index);",
        "random_of<Rule>(scalars, threadIdx.x);",
        ROUNDED,
        "rounded_steps",
    ),
    "one random number for both moments": PlantedBug(
        "cuda/step.cuh",
        "stored_state<State>(element_states[s], random, s)",
        "stored_state<State>(element_states[s], random, 0)",
        ROUNDED,
        "rounded_steps",
    ),
    "copies compared as numbers": PlantedBug(
        "cuda/weights.cuh",
        "narrow<Copy>(stored).bits != copy.bits",
        "stored != widen(copy)",
        ADAM,
        "steps",
    ),
    "barrier of one thread": PlantedBug(
        "cuda/norm.cuh",
        "      partials[index] = sum;\n",
        "      partials[index] = sum;\n      __syncthreads();\n",
        NORM,
        "statistics",
    ),
    "barrier missing while lanes are halved": PlantedBug(
        "cuda/norm.cuh",
        "[i % width + width];\n    }\n" + BARRIER,
        "[i % width + width];\n    }\n",
        NORM,
        "statistics",
    ),
    "barrier missing before lanes are halved": PlantedBug(
        "cuda/norm.cuh",
        "shared.is_nonzero[block] = 1;\n  __syncthreads();\n",
        "shared.is_nonzero[block] = 1;\n",
        NORM,
        "statistics",
    ),
    "doubtful sums kept": PlantedBug(
        "cuda/norm.cuh", "is_doubtful_sum(sum) &&", "false &&", NORM, "statistics"
    ),
    "sums in another order": PlantedBug(
        "cuda/norm.cuh",
        "shared.lanes[i / width][i % width + width]",
        "shared.lanes[i / width][2 * width - 1 - i % width]",
        NORM,
        "order_of_sums",
    ),
    "end of a chunk read as one of a row": PlantedBug(
        "cuda/vectors.cuh",
        "offset + kWidth <= count",
        "offset < count",
        NORM,
        "statistics",
    ),
    "total over the last row only": PlantedBug(
        "cuda/norm.cuh",
        "is_total ? 0 : table",
        "is_total ? table.num_chunks - 1 : table",
        NORM,
        "norms",
    ),
    "alignment of outputs not tested": PlantedBug(
        "cuda/map.cuh", " && is_aligned(row.tensors[2])", "", MAP, "sums"
    ),
    "infinity noted at the first tensor": PlantedBug(
        "cuda/map.cuh",
        "if (!map_eight(row, i, map)) *found_inf.of(chunk.row) = 1.0f;",
        "if (!map_eight(row, i, map)) *found_inf.of(0) = 1.0f;",
        MAP,
        "sums",
    ),
    "infinity in a gradient noted at the first one": PlantedBug(
        "cuda/norm.cuh", "found_inf.of(chunk.row)", "found_inf.of(0)", NORM, "statistics"
    ),
    "infinity among last elements not seen": PlantedBug(
        "cuda/map.cuh",
        "if (!map_one(row, i, map)) *found_inf.of(chunk.row) = 1.0f;",
        "map_one(row, i, map);",
        MAP,
        "scaled_copies",
    ),
    "padding of a row counted": PlantedBug(
        "cuda/cross_entropy.cuh",
        "      if (offset + k < count) {\n",
        "      {\n",
        CROSS_ENTROPY,
        "cross_entropy",
    ),
    "terms in another order": PlantedBug(
        "cuda/cross_entropy.cuh",
        "shared.lanes[i / width][i % width + width]",
        "shared.lanes[i / width][2 * width - 1 - i % width]",
        CROSS_ENTROPY,
        "cross_entropy_orders",
    ),
    "last sweep over a row missed": PlantedBug(
        "cuda/cross_entropy.cuh",
        "begin < count; begin += kTermSweep",
        "begin == 0; begin += kTermSweep",
        CROSS_ENTROPY,
        "cross_entropy",
    ),
    "target overwritten by its class": PlantedBug(
        "cuda/cross_entropy.cuh",
        "row, to);\n    __syncthreads();\n",
        "row, to);\n",
        CROSS_ENTROPY,
        "cross_entropy_orders",
    ),
    "lanes overwritten while they are added": PlantedBug(
        "cuda/cross_entropy.cuh",
        "[k][0]);\n    }\n    __syncthreads();\n",
        "[k][0]);\n    }\n",
        CROSS_ENTROPY,
        "cross_entropy_orders",
    ),
    "alignment of results not tested": PlantedBug(
        "cuda/cross_entropy.cuh",
        "is_aligned(logits) && is_aligned(to) ?",
        "is_aligned(logits) ?",
        CROSS_ENTROPY,
        "cross_entropy_layouts",
    ),
    "upload overwrites its start": PlantedBug(
        "cuda/upload.cu", "target + begin", "target", "cuda/upload.cu", "tables"
    ),
    "kept table found by its size": PlantedBug(
        "bind/cuda_tables.cpp",
        "kept->words != words",
        "kept->words.size() != words.size()",
        "bind/cuda_tables.cpp",
        "tables",
    ),
    "kept table in a captured graph": PlantedBug(
        "bind/cuda_tables.cpp",
        "  if (is_capturing) return upload_words(words, call);\n",
        "",
        "bind/cuda_tables.cpp",
        "tables",
    ),
}
