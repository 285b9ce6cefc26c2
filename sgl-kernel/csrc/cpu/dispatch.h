// Which instruction sets were built, which of them this processor (and its operating system) can run.
#pragma once

#include <string>
#include <vector>

#include "smartgen/kernels.h"

namespace smartgen {

// Runnable here, fastest first; never empty, "portable" is always last.
const std::vector<const KernelTable*>& available_kernels();

// The named table, or the fastest for an empty name.  Throws std::invalid_argument that lists what there is.
const KernelTable& kernels_for(const std::string& isa);

}  // namespace smartgen
