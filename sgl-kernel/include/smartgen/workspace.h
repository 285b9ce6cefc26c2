// Scratch memory of the calling thread: grows to the largest request so far, lives as long as the thread.
//
// Defined outside the per-ISA sources so that no library template is ever compiled with wide instructions.
#pragma once

#include <cstddef>

namespace smartgen {

// At least `bytes` bytes, aligned to 64.  The previous result of the same thread becomes invalid.
// Throws std::bad_alloc (which ends the process when it happens inside a parallel region).
void* scratch(std::size_t bytes);

}  // namespace smartgen
