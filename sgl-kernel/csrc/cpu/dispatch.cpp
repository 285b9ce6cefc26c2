// Run-time choice among the compiled instruction sets.
#include "dispatch.h"

#include <stdexcept>

namespace smartgen {

#ifdef SMARTGEN_X86
extern const KernelTable kernels_avx512bf16, kernels_avx512, kernels_avx2;
#endif
extern const KernelTable kernels_portable;

namespace {

std::vector<const KernelTable*> detect() {
  std::vector<const KernelTable*> found;
#ifdef SMARTGEN_X86
  // The compiler's CPU model reads XCR0 too: a feature whose registers the system does not save counts as absent.
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back(&kernels_avx512bf16);
  if (avx512) found.push_back(&kernels_avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&kernels_avx2);
#endif
  found.push_back(&kernels_portable);
  return found;
}

}  // namespace

const std::vector<const KernelTable*>& available_kernels() {
  static const std::vector<const KernelTable*> found = detect();
  return found;
}

const KernelTable& kernels_for(const std::string& isa) {
  const auto& found = available_kernels();
  if (isa.empty()) return *found.front();
  std::string names;
  for (const KernelTable* table : found) {
    if (isa == table->isa) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->isa);
  }
  throw std::invalid_argument("isa: got '" + isa + "', available here: " + names);
}

}  // namespace smartgen
