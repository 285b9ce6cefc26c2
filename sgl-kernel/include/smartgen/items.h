// Spreading independent pieces of work over threads; with one thread no parallel region is entered.
#pragma once

#include <cstdint>

namespace smartgen {
namespace {

// Rows [0, count) by body(row).
template <class Body>
void for_rows(int64_t count, int threads, Body body) {
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) body(i);
}

// Items [0, count) by worker.item(i), in any order; every thread has its own worker with its own scratch memory.
template <class Worker, class Arguments>
void for_items(int64_t count, int threads, const Arguments& arguments) {
  if (threads <= 1 || count <= 1) {
    Worker worker(arguments);
    for (int64_t i = 0; i < count; ++i) worker.item(i);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    Worker worker(arguments);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) worker.item(i);
  }
}

}  // namespace
}  // namespace smartgen
