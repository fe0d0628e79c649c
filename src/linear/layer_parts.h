// SPDX-License-Identifier: Apache-2.0
// What the two kinds of layers share: paths, arguments at the door, and the cut of y among threads.
#ifndef ISOBIT_LINEAR_LAYER_PARTS_H_
#define ISOBIT_LINEAR_LAYER_PARTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/aligned_memory.h"
#include "isobit/linear.h"
#include "isobit/parallel.h"
#include "linear/layer_engine.h"

namespace isobit {

inline Status refuse_linear(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

inline int threads_of(const ThreadPool* pool) { return pool == nullptr ? 1 : pool->threads(); }

/// The path that was asked for, or the default; an error where it cannot run here.
Result<CpuPath> linear_path(std::optional<CpuPath> requested, const std::string& name);

/// The row of layer_kernels.inc that an operation takes on a path: that of the nearest path before it.
const LinearLayerKernel& linear_layer_kernel(std::string_view operation, CpuPath path);

Status check_clamp(const LinearClamp& clamp, const std::string& name);
Status check_bias(std::span<const float> bias, int64_t rows, const std::string& name);
/// Activations, clamp and bias of a layer with N rows.
Status check_linear_options(const LinearOptions& options, int64_t rows, const std::string& name);
Status check_linear_types(Dtype x, Dtype y, LinearActivations activations);

/// Rows in memory: `columns` elements of `dtype`, `stride` elements from one to the next.
struct LinearRows {
  const char* name;
  const std::byte* data;
  size_t size_bytes;
  Dtype dtype;
  int64_t columns;
  int64_t stride;  // 0: columns, which the check puts in its place
};
/// Sizes, strides and alignment of both, and that they are apart.
Status check_rows_apart(LinearRows& x, int64_t x_rows, LinearRows& y, int64_t y_rows);
/// The same for m rows each, and m.
Status check_linear_rows(LinearRows& x, LinearRows& y, int64_t m);
/// Refuses options that mean nothing here, and another path than the layer's.
Status check_row_options(const RunOptions& options, CpuPath path, std::string_view who = "a linear layer on the CPU");
Status check_linear_workspace(const Workspace& workspace, int64_t needed_bytes, int64_t m, int threads);

/// Calls body(part, rectangle) for rectangles that cover m rows and n blocks of y, both at least 1, on the pool if any.
/// Rows are divided, at multiples of kRowStep, only where there are too few blocks to keep all threads busy; the
/// rectangles of a part come in the order of blocks, so that weights are read once.
template <typename Body>
void for_rectangles(ThreadPool* pool, int64_t m, int64_t n, const Body& body) {
  constexpr int64_t kRowStep = 16;
  constexpr int64_t kItemsOfThread = 4;
  const int64_t threads = threads_of(pool);
  if (threads == 1) return body(0, LinearRectangle{0, m, 0, n});
  const int64_t wanted = (kItemsOfThread * threads + n - 1) / n;  // pieces of m
  const int64_t step = ((m + wanted - 1) / wanted + kRowStep - 1) / kRowStep * kRowStep;
  const int64_t pieces = (m + step - 1) / step;
  const auto call = [&](int part, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end) {
    if (m_begin < m_end && n_begin < n_end)
      body(part, LinearRectangle{m_begin * step, std::min(m, m_end * step), n_begin, n_end});
  };
  // Items are pieces of blocks, m fastest: a range is the end of a block, whole blocks, and the start of another.
  pool->for_ranges(n * pieces, [&](int part, int64_t begin, int64_t end) {
    int64_t first = begin / pieces;
    const int64_t last = end / pieces;
    if (first == last) return call(part, begin % pieces, end % pieces, first, first + 1);
    if (begin % pieces != 0) {
      call(part, begin % pieces, pieces, first, first + 1);
      ++first;
    }
    call(part, 0, pieces, first, last);
    call(part, 0, end % pieces, last, last + 1);
  });
}

}  // namespace isobit

#endif  // ISOBIT_LINEAR_LAYER_PARTS_H_
