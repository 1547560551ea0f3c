// Operators that are written by hand; each function registers those of one file.
#pragma once

#include <torch/library.h>

namespace lightning_mp::fl {

void register_factories(torch::Library& aten);
void register_copies(torch::Library& aten);
void register_storage_setters(torch::Library& aten);
void register_views(torch::Library& aten);
void register_hot_operators(torch::Library& aten);
void register_autocast(torch::Library& aten);  // at the Autocast key
void register_attention();

// Built-in generic kernels: operators of our own namespace, and what they stand for.
void define_recurrent_cells(torch::Library& library);
void register_recurrent_cells();

}  // namespace lightning_mp::fl
