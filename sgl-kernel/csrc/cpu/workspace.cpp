// One growing, 64-byte aligned buffer per thread.
#include "smartgen/workspace.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace smartgen {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

thread_local std::unique_ptr<void, Free> buffer;
thread_local std::size_t capacity = 0;

}  // namespace

void* scratch(std::size_t bytes) {
  if (bytes > capacity) {
    const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
    buffer.reset();
    capacity = 0;
    buffer.reset(std::aligned_alloc(64, rounded));
    if (!buffer) throw std::bad_alloc();
    capacity = rounded;
  }
  return buffer.get();
}

}  // namespace smartgen
