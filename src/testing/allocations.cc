// SPDX-License-Identifier: Apache-2.0
// Counts the allocations of a test program, and tests in each that it does.
#include "testing/allocations.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ISOBIT_TEST_MEMORY_HOOKS
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ISOBIT_TEST_MEMORY_HOOKS
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void count_allocation() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// Below operator new, so that C libraries are seen, too.
// NOLINTBEGIN(bugprone-reserved-identifier): the names are those of glibc and of the sanitizer
#if defined(ISOBIT_TEST_MEMORY_HOOKS)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                         void (*on_free)(const volatile void*));
namespace {
const int kHooks = __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t) { count_allocation(); },
                                                             [](const volatile void*) {});
}  // namespace
#else
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  count_allocation();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) noexcept {
  count_allocation();
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) noexcept {
  count_allocation();
  return __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  count_allocation();
  return __libc_memalign(alignment, size);
}
void* memalign(size_t alignment, size_t size) noexcept {
  count_allocation();
  return __libc_memalign(alignment, size);
}
// What aligned operator new calls differs between versions of libstdc++.
int posix_memalign(void** out, size_t alignment, size_t size) noexcept {
  count_allocation();
  void* const memory = __libc_memalign(alignment, size);
  if (memory == nullptr) return ENOMEM;
  *out = memory;
  return 0;
}
}
#endif
// NOLINTEND(bugprone-reserved-identifier)

namespace isobit::testing {

void start_counting_allocations() {
  allocations = 0;
  counting = true;
}

int stop_counting_allocations() {
  counting = false;
  return allocations;
}

namespace {

TEST(Allocations, AreCounted) {
  EXPECT_EQ(allocations_of([] {}), 0);
  void* volatile kept = nullptr;  // or the compiler leaves the allocation out
  EXPECT_EQ(allocations_of([&] { kept = std::malloc(10); }), 1);
  std::free(kept);
  EXPECT_EQ(allocations_of([&] { kept = ::operator new(10); }), 1);
  ::operator delete(kept);
  EXPECT_EQ(allocations_of([&] { kept = ::operator new(64, std::align_val_t{64}); }), 1);
  ::operator delete(kept, std::align_val_t{64});
  std::vector<float> values;
  EXPECT_GE(allocations_of([&] { values.resize(100); }), 1);
  ThreadPool pool(2);
  start(pool);
  void* volatile of_threads[2] = {nullptr, nullptr};
  const int counted = allocations_of(
      [&] { pool.for_ranges(2, [&](int part, int64_t, int64_t) { of_threads[part] = std::malloc(10); }); });
  EXPECT_EQ(counted, 2);
  for (void* one : of_threads) std::free(one);
}

}  // namespace
}  // namespace isobit::testing
