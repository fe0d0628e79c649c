// SPDX-License-Identifier: Apache-2.0
// One direction of one layer, ready to run: the normative reference and the packed kernels.
#ifndef ISOBIT_GRU_LAYER_H_
#define ISOBIT_GRU_LAYER_H_

#include <array>
#include <iterator>
#include <optional>
#include <vector>

#include "gru/gates.h"
#include "gru/proof.h"
#include "isobit/gru.h"
#include "linear/linear.h"

namespace isobit {

/// Where the codes of sequence b at step t begin: data + (t * step + b * sequence) elements.
struct CodeStrides {
  int64_t step = 0;
  int64_t sequence = 0;
};

/// One run of one direction over sequences [begin, end) of a batch.
struct LayerRun {
  int64_t steps = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool reverse = false;
  const std::byte* x = nullptr;  // codes of the x grid
  CodeStrides x_strides;
  std::byte* y = nullptr;        // codes of the h grid; already offset to this direction's columns
  CodeStrides y_strides;
  std::byte* h = nullptr;        // [N, H] codes, in and out
  std::span<const int64_t> lengths;
  const uint8_t* mask = nullptr;  // [T, N, mask_width], already offset to this direction's columns
  int64_t batch = 0;
  int64_t mask_width = 0;
  GruCodeObserver* observer = nullptr;
  int64_t layer = 0;
  std::byte* scratch = nullptr;   // 64-byte aligned
};

class GruLayer {
 public:
  static Result<GruLayer> create(GruLayerParameters parameters, const std::string& name);

  [[nodiscard]] const GruLayerParameters& parameters() const { return p_; }
  [[nodiscard]] const GruProof& proof() const { return proof_; }
  /// Whether the packed kernels compute this layer, and why not.
  [[nodiscard]] Status supports_packed() const { return packed_reason_; }
  [[nodiscard]] int64_t scratch_bytes(int64_t sequences, int64_t steps) const;

  void run(CpuPath path, const LayerRun& run) const;

 private:
  /// What one path runs.
  struct Kernels {
    std::optional<PackedWeights> W, R;
    GatesS32 gates_s32 = nullptr;
    GatesS64 gates_s64 = nullptr;
  };

  void run_reference(const LayerRun& run) const;
  template <typename Acc>
  void run_packed(const Kernels& kernels, const LayerRun& run) const;
  Status pack();

  GruLayerParameters p_;
  GruProof proof_;
  std::vector<int64_t> W_sum_, R_sum_;
  Status packed_reason_;

  // Packed kernels; empty when packed_reason_ is an error. gates() points into these vectors.
  [[nodiscard]] GateConstants gates() const;
  int64_t padded_ = 0;
  bool wide_ = false;  // int64 accumulators and lanes
  std::array<Kernels, std::size(kAllCpuPaths)> kernels_;
  std::vector<int32_t> start32_[2], shift_[2], multiplier_[2];  // ih, hh; [3 * padded]
  std::vector<int64_t> start64_[2];
  std::vector<int16_t> tables_[3];
};

}  // namespace isobit

#endif  // ISOBIT_GRU_LAYER_H_
