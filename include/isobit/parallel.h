// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_PARALLEL_H_
#define ISOBIT_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <type_traits>

namespace isobit {

/// A fixed number of threads. Work is split statically: part p of n items is [n*p/threads, n*(p+1)/threads), so
/// that which thread does what never depends on timing. One run() at a time.
class ThreadPool {
 public:
  /// threads >= 1, the caller's thread included; 0 means one per processor that this process may use.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const;

  /// Calls body(context, part, begin, end) once for every part with begin < end and returns when all have.
  /// Allocates nothing. Bodies run in the default floating-point modes, whatever the caller's are.
  void run(int64_t items, void (*body)(void* context, int part, int64_t begin, int64_t end), void* context);

  /// The same for any callable (part, begin, end).
  template <typename Body>
  void for_ranges(int64_t items, Body&& body) {
    using BodyType = std::remove_reference_t<Body>;
    run(items,
        [](void* context, int part, int64_t begin, int64_t end) {
          (*static_cast<BodyType*>(context))(part, begin, end);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobit

#endif  // ISOBIT_PARALLEL_H_
