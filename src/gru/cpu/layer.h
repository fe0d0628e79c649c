// SPDX-License-Identifier: Apache-2.0
// One direction of one layer, ready to run: the normative reference and the packed kernels.
#ifndef ISOBIT_GRU_CPU_LAYER_H_
#define ISOBIT_GRU_CPU_LAYER_H_

#include <array>
#include <iterator>
#include <optional>
#include <vector>

#include "gru/cpu/kernels.h"
#include "gru/proof.h"
#include "isobit/gru.h"
#include "product/product.h"

namespace isobit {

/// Where the codes of sequence b at step t begin: data + (t * step + b * sequence) elements.
struct CodeStrides {
  int64_t step = 0;
  int64_t sequence = 0;
};

/// What training keeps of a run, of all steps and sequences: [T, N] of what GateRecord has, of H units. Past a length
/// nothing is written.
struct LayerRecord {
  float* saved;
  uint16_t* passes;
  uint16_t* above;
  float* rests;
};

/// One run of one direction over sequences [begin, end) of a batch.
struct LayerRun {
  int64_t steps = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool reverse = false;
  const std::byte* x = nullptr;    // codes of the x grid; or
  const float* x_float = nullptr;  // values, none of them NaN (packed kernels only)
  CodeStrides x_strides;
  std::byte* y = nullptr;    // codes of the h grid; already offset to this direction's columns; or, or also
  float* y_float = nullptr;  // values (packed kernels only)
  CodeStrides y_strides;
  std::byte* h = nullptr;  // [N, H] codes, in and out
  std::span<const int64_t> lengths;
  const uint8_t* mask = nullptr;  // [T, N, mask_width], already offset to this direction's columns
  int64_t batch = 0;
  int64_t mask_width = 0;
  GruCodeObserver* observer = nullptr;
  const LayerRecord* record = nullptr;  // packed kernels only
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
  [[nodiscard]] const Status& supports_packed() const { return packed_reason_; }
  [[nodiscard]] int64_t scratch_bytes(int64_t sequences, int64_t steps) const;

  void run(CpuPath path, const LayerRun& run) const;

  /// Index of the first NaN of x, or count; path is not the reference.
  [[nodiscard]] int64_t find_nan(CpuPath path, std::span<const float> x) const {
    return paths_[static_cast<size_t>(path)].gru.find_nan(x.data(), static_cast<int64_t>(x.size()));
  }

 private:
  GruLayer() = default;

  /// A row of codes as activation planes.
  struct PlaneLayout {
    int32_t planes = 1;       // also the bytes of a code
    int32_t flip = 0;         // the sign bit of signed codes
    int32_t to_unsigned = 0;  // what makes code - zero point unsigned
    int64_t plane_bytes = 0;
    int64_t row_bytes = 0;
  };
  static PlaneLayout plane_layout(const Grid& grid, int64_t count);

  /// What one path runs.
  struct Path {
    LinearKernel linear = nullptr;
    GruKernels gru{};
  };

  void run_reference(const LayerRun& run) const;
  template <typename Acc>
  void run_packed(const Path& path, const LayerRun& run) const;
  template <typename Acc>
  void run_one_step(const Path& path, const LayerRun& run) const;
  template <typename Acc>
  [[nodiscard]] const Acc* start(int side) const;
  /// Row b of step t of the input to activation planes, and of h_diff to the output.
  void load_x(const Path& path, const LayerRun& run, int64_t t, int64_t b, uint8_t* planes) const;
  void store_y(const Path& path, const LayerRun& run, int64_t t, int64_t b, const int32_t* diff) const;
  Status pack();
  void set_gate_constants();
  template <typename T>
  void set_float_gate_constants(FloatGateConstants<T>& c, const std::vector<T> (&ratios)[2]) const;
  void run_gates(const Path& path, int64_t unit, int64_t units, const int32_t* acc_x, const int32_t* acc_h,
                 int32_t* h_diff, uint8_t* low, uint8_t* high) const;
  void run_gates(const Path& path, int64_t unit, int64_t units, const int64_t* acc_x, const int64_t* acc_h,
                 int32_t* h_diff, uint8_t* low, uint8_t* high) const;
  /// The same with a record of units [unit, unit + units) of row t * N + b.
  template <typename Acc>
  void record_gates(const Path& path, const LayerRecord& record, int64_t row, int64_t unit, int64_t units,
                    const Acc* acc_x, const Acc* acc_h, int32_t* h_diff, uint8_t* low, uint8_t* high) const;

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
  std::vector<uint8_t> byte_tables_[3];  // empty when any table has more than 8 bits on either side
  std::vector<float> ratio32_[2];
  std::vector<double> ratio64_[2];
  // These point into the vectors above, so a layer moves but is never copied.
  GateConstants gates_{};
  FloatGateConstants<float> gates_f32_{};
  FloatGateConstants<double> gates_f64_{};
  RowQuantizer x_quantizer_{};
  PlaneLayout x_planes_, h_planes_;
  float h_scale_ = 1;
};

}  // namespace isobit

#endif  // ISOBIT_GRU_CPU_LAYER_H_
