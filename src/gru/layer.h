// SPDX-License-Identifier: Apache-2.0
// One direction of one layer, ready to run: the normative reference and the packed kernels.
#ifndef ISOBIT_GRU_LAYER_H_
#define ISOBIT_GRU_LAYER_H_

#include <array>
#include <iterator>
#include <optional>
#include <vector>

#include "gru/kernels.h"
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
  const std::byte* x = nullptr;  // codes of the x grid; or
  const float* x_float = nullptr;  // values, none of them NaN (packed kernels only)
  CodeStrides x_strides;
  std::byte* y = nullptr;        // codes of the h grid; already offset to this direction's columns; or
  float* y_float = nullptr;      // values (packed kernels only)
  CodeStrides y_strides;
  std::byte* h = nullptr;        // [N, H] codes, in and out
  std::span<const int64_t> lengths;
  const uint8_t* mask = nullptr;  // [T, N, mask_width], already offset to this direction's columns
  int64_t batch = 0;
  int64_t mask_width = 0;
  GruCodeObserver* observer = nullptr;
  int64_t layer = 0;
  std::byte* scratch = nullptr;   // 64-byte aligned
  bool last_block_first = false;  // see GruLayer::run_packed
};

class GruLayer {
 public:
  static Result<GruLayer> create(GruLayerParameters parameters, const std::string& name);
  GruLayer(GruLayer&&) = default;
  GruLayer& operator=(GruLayer&&) = default;

  [[nodiscard]] const GruLayerParameters& parameters() const { return p_; }
  [[nodiscard]] const GruProof& proof() const { return proof_; }
  /// Whether the packed kernels compute this layer, and why not.
  [[nodiscard]] Status supports_packed() const { return packed_reason_; }
  [[nodiscard]] int64_t scratch_bytes(int64_t sequences, int64_t steps) const;

  void run(CpuPath path, const LayerRun& run) const;

  /// Index of the first NaN of x, or count; path is not the reference.
  [[nodiscard]] int64_t find_nan(CpuPath path, std::span<const float> x) const {
    return paths_[static_cast<size_t>(path)].gru.find_nan(x.data(), static_cast<int64_t>(x.size()));
  }

 private:
  GruLayer() = default;

  /// What one path runs.
  struct Path {
    LinearKernel linear = nullptr;
    GruKernels gru{};
  };

  void run_reference(const LayerRun& run) const;
  template <typename Acc>
  void run_packed(const Path& path, const LayerRun& run) const;
  Status pack();
  void set_gate_constants();

  GruLayerParameters p_;
  GruProof proof_;
  std::vector<int64_t> W_sum_, R_sum_;
  Status packed_reason_;

  // Packed kernels; empty when packed_reason_ is an error. Rows are in tile order (kernels.h).
  int64_t padded_ = 0;  // hidden size rounded up to kUnitsPerTile
  bool wide_ = false;   // int64 accumulators and lanes
  std::optional<PackedWeights> W_, R_;
  std::array<Path, std::size(kAllCpuPaths)> paths_;
  std::vector<int32_t> start32_[2], shift_[2], multiplier_[2], half_[2], tie_mask_[2];  // ih, hh; [3 * padded]
  std::vector<int64_t> start64_[2];
  std::vector<uint16_t> tables_[3];
  GateConstants gates_{};  // points into the vectors above, so a layer moves but is never copied
  RowQuantizer x_quantizer_{};
};

}  // namespace isobit

#endif  // ISOBIT_GRU_LAYER_H_
