// SPDX-License-Identifier: Apache-2.0
#include "isobit/parallel.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/float_mode.h"

namespace isobit {

struct ThreadPool::Impl {
  int threads = 1;
  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable done;
  uint64_t generation = 0;  // of the current job
  int running = 0;
  bool stop = false;
  int64_t items = 0;
  void (*body)(void*, int, int64_t, int64_t) = nullptr;
  void* context = nullptr;
  std::vector<std::thread> workers;

  // Also of a pool that is half made when the system has no further thread.
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    start.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void run_part(int part) const {
    const int64_t begin = items * part / threads;
    const int64_t end = items * (part + 1) / threads;
    if (begin >= end) return;
    const DefaultFloatMode mode;
    body(context, part, begin, end);
  }

  void work(int part) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      lock.unlock();
      run_part(part);
      lock.lock();
      if (--running == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  impl_->threads = threads < 1 ? 1 : threads;
  for (int part = 1; part < impl_->threads; ++part)
    impl_->workers.emplace_back([impl = impl_.get(), part] { impl->work(part); });
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads; }

void ThreadPool::run(int64_t items, void (*body)(void*, int, int64_t, int64_t), void* context) {
  Impl& impl = *impl_;
  {
    const std::lock_guard lock(impl.mutex);
    impl.items = items;
    impl.body = body;
    impl.context = context;
    impl.running = impl.threads - 1;
    ++impl.generation;
  }
  if (impl.threads > 1) impl.start.notify_all();
  impl.run_part(0);
  std::unique_lock lock(impl.mutex);
  impl.done.wait(lock, [&] { return impl.running == 0; });
}

}  // namespace isobit
