// Checks the values that shapes cannot: rows, lengths, positions and page tables stay inside their tensors.
#pragma once

#include "smartgen/kernels.h"

namespace smartgen {

// Each throws std::invalid_argument naming argument, place, value and expectation.
void check_batch(const AttentionBatch& batch, bool extend);
void check_blocks(const BlockKeys& keys);
void check_positions(const Rotary& rotary, int64_t max_positions);

}  // namespace smartgen
