// SPDX-License-Identifier: Apache-2.0
// How a layer is run: the options and the scratch memory that all layers share.
//
//   Workspace workspace = layer.workspace(extents);     // once
//   layer.forward(x, x_dtype, y, y_dtype, extents, workspace, options);
//
// Extents are the sizes that a layer does not know itself: rows of a linear layer; steps of a GRU, whose state has the
// number of sequences. forward allocates nothing, and writes nothing when it returns an error.
#ifndef ISOBIT_RUN_H_
#define ISOBIT_RUN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "isobit/cpu.h"
#include "isobit/parallel.h"

struct CUstream_st;  // cudaStream_t points to it

namespace isobit {

/// Scratch memory of forward. It belongs to no layer: any layer may use it, one call at a time, that needs no more of
/// it than was asked for.
class Workspace {
 public:
  Workspace() = default;
  /// Not cleared: memory that no path uses never becomes resident.
  explicit Workspace(int64_t size_bytes);
  /// Memory of the caller, who frees it after the workspace. forward refuses it where it is not 64-byte aligned.
  explicit Workspace(std::span<std::byte> memory);
  /// Memory of the CUDA device with this number, which `release` gives back. Layers on that device make it.
  Workspace(std::byte* memory, int64_t size_bytes, int device, void (*release)(std::byte*));

  [[nodiscard]] int64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::byte* data() { return bytes_.get(); }  // 64-byte aligned
  [[nodiscard]] bool is_aligned() const { return reinterpret_cast<uintptr_t>(bytes_.get()) % 64 == 0; }
  /// The CUDA device whose memory it is; empty: the host's.
  [[nodiscard]] std::optional<int> device() const { return device_; }

 private:
  friend class GruModel;

  std::unique_ptr<std::byte, void (*)(std::byte*)> bytes_{nullptr, nullptr};
  int64_t size_bytes_ = 0;
  std::optional<int> device_{};
  bool last_block_first_ = false;  // which end of the weights a GRU's next call begins with: the end in the cache
};

/// A layer refuses an option that it cannot follow. Bytes depend on none but lengths, masks, layouts and strides.
/// Arrays lie where x lies: on the host, or on the device.
struct RunOptions {
  // ---- Who computes
  /// On the CPU: kernels of this path. Default: default_cpu_path(); the reference where only it can run. Linear layers
  /// are packed for one path when they are created, and run no other.
  std::optional<CpuPath> path{};
  /// A kernel by its name: of FP16 tables, and of what runs on a device. Empty: the fastest for the run.
  std::string_view kernel{};
  ThreadPool* pool = nullptr;     // CPU; default: the caller's thread
  CUstream_st* stream = nullptr;  // device, a cudaStream_t; null: the default stream

  // ---- Layers over sequences
  std::span<const int64_t> lengths{};       // [N], 0..T; default T for all
  std::span<const uint8_t> zoneout_mask{};  // [T, N, directions * H] of one layer: 1 takes h', 0 keeps h; single layer
  bool batch_first = false;                 // x [N, T, C] and y [N, T, directions * H]
  /// The caller's word that x holds whole sequences, not pieces of them. Bidirectional models want it: their reverse
  /// direction begins at the last step, so pieces one by one give other results.
  bool whole_sequence = false;
  /// For arrays on a device: memory as large as the state and apart from it, where the last state goes instead; the
  /// state is only read, then. Runs of one step of codes are one launch instead of two so, if x and the rows of h are
  /// multiples of 16 bytes: two buffers in turn.
  std::span<std::byte> next_state{};

  // ---- Layers over rows
  int64_t x_stride = 0;  // elements from row to row of x, at least K; 0: K
  int64_t y_stride = 0;  // elements from row to row of y, at least N; 0: N. What lies between rows is not written.
  /// Rows of x that are not finite are not looked for where x is quantised in the call; every element of such a row of
  /// y becomes NaN.
  bool unchecked = false;
};

}  // namespace isobit

#endif  // ISOBIT_RUN_H_
