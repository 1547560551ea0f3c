// Kernels made of other operators, which run on every device. They are operators themselves, of the
// same schema; lightning_mp.fl registers them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace lightning_mp::fl {

// An operator may have several of them; the one of the chosen precision is called, or the one of
// the precision "default" if there is none.
void add_generic_kernel(const std::string& op, const std::string& precision,
                        const std::string& kernel);
// A kernel that is part of the device: it is there even where generic kernels are switched off, and
// nobody is warned of it.
void add_built_in_kernel(const std::string& op, const std::string& kernel);
void remove_generic_kernel(const std::string& op, const std::string& precision);
void choose_precision(const std::string& precision);

bool has_generic_kernel(const std::string& op);
bool has_built_in_kernel(const std::string& op);
c10::OperatorHandle generic_kernel(const std::string& op);

}  // namespace lightning_mp::fl
