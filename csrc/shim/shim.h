// What tests set and see of the shim; C functions, for ctypes.
#pragma once

#define SHIM_EXPORTED extern "C" __attribute__((visibility("default")))

// The order of threads between barriers, and of blocks: 0 forward, 1 backward, 2 shuffled.
SHIM_EXPORTED void shim_set_order(int order, unsigned seed);

// The most blocks that a launch gets; 0 for as many as it asks for.
SHIM_EXPORTED void shim_set_max_grid(unsigned max_grid);

// Leaves out the blocks before this one: rows that are too large to be run as a whole.
SHIM_EXPORTED void shim_set_first_block(unsigned first_block);

SHIM_EXPORTED void shim_set_capturing(int is_capturing);

// Names of the kernels launched since shim_reset(), as the launcher spells them, one per line and
// launch.
SHIM_EXPORTED const char* shim_launches();

SHIM_EXPORTED void shim_reset();
