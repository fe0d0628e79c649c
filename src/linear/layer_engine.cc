// SPDX-License-Identifier: Apache-2.0
#include "linear/layer_engine.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "core/codes.h"
#include "linear/float/float.h"
#include "linear/int8/int8.h"
#include "linear/layer_parts.h"
#include "linear/layer_reference.h"
#include "linear/static/static.h"
#include "product/product.h"

namespace isobit {
namespace {

/// Row i of x as float32.
void widen_row(const LinearCall& call, int64_t i, int64_t columns, float* out) {
  for (int64_t k = 0; k < columns; ++k) out[k] = load_float(call.x_row(i), call.x_dtype, k);
}

int64_t bytes_of(const ReferenceWeights& w) {
  return static_cast<int64_t>(w.v.size() * sizeof(int16_t) +
                              (w.scales.size() + w.offsets.size() + w.parts.size()) * sizeof(float) +
                              w.sums.size() * sizeof(int64_t));
}

class FloatReferenceEngine final : public LinearEngine {
 public:
  FloatReferenceEngine(const LowBitMatrix& matrix, LinearEpilogue epilogue)
      : weights_(reference_weights(matrix)), epilogue_(std::move(epilogue)) {}

  [[nodiscard]] int64_t blocks() const override { return weights_.n; }
  [[nodiscard]] int64_t size_bytes() const override { return bytes_of(weights_); }
  [[nodiscard]] int64_t scratch_bytes(int64_t) const override {
    return weights_.k * static_cast<int64_t>(sizeof(float));
  }
  void run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const override {
    auto* x = reinterpret_cast<float*>(scratch);
    for (int64_t i = part.m_begin; i < part.m_end; ++i) {
      widen_row(call, i, weights_.k, x);
      for (int64_t n = part.n_begin; n < part.n_end; ++n)
        store_float(call.y_row(i), call.y_dtype, n,
                    reference_one_nan(reference_act(
                        static_cast<float>(reference_sum(weights_, n, x, epilogue_.bias[static_cast<size_t>(n)]).value),
                        epilogue_.clamp)));
    }
  }

 private:
  ReferenceWeights weights_;
  LinearEpilogue epilogue_;
};

class Int8ReferenceEngine final : public LinearEngine {
 public:
  Int8ReferenceEngine(const LowBitMatrix& matrix, bool asymmetric, LinearEpilogue epilogue)
      : weights_(reference_weights(matrix)), asymmetric_(asymmetric), epilogue_(std::move(epilogue)) {}

  [[nodiscard]] int64_t blocks() const override { return weights_.n; }
  [[nodiscard]] int64_t size_bytes() const override { return bytes_of(weights_); }
  [[nodiscard]] int64_t rows_bytes(int64_t m) const override { return m * row_bytes(); }
  [[nodiscard]] int64_t scratch_bytes(int64_t) const override {
    return weights_.k * static_cast<int64_t>(sizeof(float));
  }

  bool quantize_row(const LinearCall& call, int64_t i, std::byte* scratch) const override {
    auto* x = reinterpret_cast<float*>(scratch);
    widen_row(call, i, weights_.k, x);
    bool finite = true;
    for (int64_t g = 0; g < weights_.groups && finite; ++g) {
      const int64_t begin = g * weights_.group;
      finite = reference_quantize(x + begin, std::min(weights_.group, weights_.k - begin), asymmetric_,
                                  codes(call, i) + begin, groups(call, i)[g]);
    }
    if (!finite) groups(call, i)->scale = std::numeric_limits<float>::quiet_NaN();
    return finite;
  }

  void run(const LinearCall& call, const LinearRectangle& part, std::byte*) const override {
    for (int64_t i = part.m_begin; i < part.m_end; ++i) {
      const ReferenceGroup* row = groups(call, i);
      const bool finite = !std::isnan(row->scale);
      for (int64_t n = part.n_begin; n < part.n_end; ++n) {
        const float total = finite ? reference_promoted(weights_, n, codes(call, i), row, asymmetric_) : row->scale;
        store_float(call.y_row(i), call.y_dtype, n,
                    reference_finish(total, epilogue_.bias[static_cast<size_t>(n)], epilogue_.clamp));
      }
    }
  }

 private:
  [[nodiscard]] int64_t group_bytes() const { return weights_.groups * static_cast<int64_t>(sizeof(ReferenceGroup)); }
  [[nodiscard]] int64_t row_bytes() const { return round_up_64(group_bytes() + weights_.k); }
  [[nodiscard]] ReferenceGroup* groups(const LinearCall& call, int64_t i) const {
    return reinterpret_cast<ReferenceGroup*>(call.rows + i * row_bytes());
  }
  [[nodiscard]] int8_t* codes(const LinearCall& call, int64_t i) const {
    return reinterpret_cast<int8_t*>(call.rows + i * row_bytes() + group_bytes());
  }

  ReferenceWeights weights_;
  bool asymmetric_;
  LinearEpilogue epilogue_;
};

class FloatEngine final : public LinearEngine {
 public:
  FloatEngine(PackedFloatWeights weights, FloatLinearKernel kernel, LinearEpilogue epilogue)
      : weights_(std::move(weights)), kernel_(kernel), epilogue_(std::move(epilogue)) {}

  [[nodiscard]] int64_t blocks() const override { return weights_.all_blocks().end; }
  [[nodiscard]] int64_t size_bytes() const override { return weights_.size_bytes(); }
  [[nodiscard]] int64_t scratch_bytes(int64_t m) const override { return float_linear_workspace_bytes(weights_, m); }
  void run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const override {
    float_linear(kernel_, weights_, {static_cast<int32_t>(part.n_begin), static_cast<int32_t>(part.n_end)},
                 {call.x_row(part.m_begin), call.y_row(part.m_begin), call.x_dtype, call.x_stride, call.y_stride,
                  part.m_end - part.m_begin},
                 {epilogue_.bias.data(), epilogue_.clamp.lo, epilogue_.clamp.hi}, scratch);
  }

 private:
  PackedFloatWeights weights_;
  FloatLinearKernel kernel_;
  LinearEpilogue epilogue_;
};

/// Workspace: codes of all rows, their groups, whether they are finite. Scratch: a row as float32 (float64 has no
/// kernel of its own) and, for tiles, its codes and groups, and later what the kernel needs and, where y is not
/// float32, a tile of it that is.
class Int8Engine final : public LinearEngine {
 public:
  Int8Engine(PackedLowBit weights, const Int8Kernels& kernels, LinearEpilogue epilogue)
      : weights_(std::move(weights)), kernels_(kernels), epilogue_(std::move(epilogue)) {
    epilogue_.bias.resize(static_cast<size_t>(weights_.padded_rows()));
  }

  [[nodiscard]] int64_t blocks() const override { return weights_.tiles(); }
  [[nodiscard]] int64_t size_bytes() const override { return weights_.size_bytes(); }
  [[nodiscard]] CpuPath kernel_path(CpuPath path) const override {
    return tiled(kTileRows) ? path : std::min(path, CpuPath::kAvx512Vnni);
  }
  [[nodiscard]] int64_t rows_bytes(int64_t m) const override { return finite_at(m) + round_up_64(m); }
  [[nodiscard]] int64_t scratch_bytes(int64_t m) const override {
    // Enough for fewer rows, too, of which a tile may have more columns.
    const int64_t elements = std::min(kTileElements, std::min(m, kRows) * kInt8TileRows * weights_.tiles());
    const int64_t tile = round_up_64(weights_.scratch_bytes()) + round_up_64(elements * kFloatBytes);
    return std::max(tile, floats_bytes() + weights_.code_bytes() + groups_bytes(1));
  }

  bool quantize_row(const LinearCall& call, int64_t i, std::byte* scratch) const override {
    const void* x = call.x_row(i);
    Dtype dtype = call.x_dtype;
    if (dtype == Dtype::kF64) {
      widen_row(call, i, weights_.layout().columns, reinterpret_cast<float*>(scratch));
      x = scratch;
      dtype = Dtype::kF32;
    }
    const Int8Rows row = rows(call, i, 1);
    auto* codes = const_cast<int8_t*>(row.codes);
    auto* groups = const_cast<Int8Group*>(row.groups);
    if (row.tiled) {
      codes = reinterpret_cast<int8_t*>(scratch + floats_bytes());
      groups = reinterpret_cast<Int8Group*>(scratch + floats_bytes() + weights_.code_bytes());
    }
    const bool finite = isobit::quantize_row(kernels_, weights_, x, dtype, codes, groups);
    if (row.tiled)
      int8_pack_row(weights_, codes, groups, i, reinterpret_cast<int8_t*>(call.rows),
                    reinterpret_cast<Int8Group*>(call.rows + groups_at(call.m)));
    call.rows[finite_at(call.m) + i] = static_cast<std::byte>(finite);
    return finite;
  }

  void run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const override {
    const int64_t n = part.n_begin * kInt8TileRows;
    const int64_t width = std::min(weights_.rows(), part.n_end * kInt8TileRows) - n;
    if (call.y_dtype == Dtype::kF32) {
      product(call, part, reinterpret_cast<float*>(y_at(call, part.m_begin, n)), call.y_stride, scratch);
    } else {
      run_narrow(call, part, scratch);
    }
    for (int64_t i = part.m_begin; i < part.m_end; ++i) {
      if (call.rows[finite_at(call.m) + i] != std::byte{0}) continue;
      for (int64_t j = 0; j < width; ++j)
        store_float(y_at(call, i, n), call.y_dtype, j, std::numeric_limits<float>::quiet_NaN());
    }
  }

 private:
  static constexpr int64_t kRows = kInt8MaxM;
  static constexpr int64_t kFloatBytes = sizeof(float);
  static constexpr int64_t kTileElements = 16384;
  static_assert(2 * kInt8TileRows * kRows <= kTileElements);

  /// Of a tile of y: 64 KB for any number of rows, two tiles of weights at least.
  [[nodiscard]] int64_t tile_columns(int64_t m) const {
    const int64_t tiles = std::max<int64_t>(2, kTileElements / (kInt8TileRows * std::clamp<int64_t>(m, 1, kRows)));
    return kInt8TileRows * std::min(tiles, weights_.tiles());
  }
  [[nodiscard]] int64_t floats_bytes() const { return round_up_64(weights_.layout().columns * kFloatBytes); }
  [[nodiscard]] bool tiled(int64_t m) const { return int8_takes_tiles(kernels_, weights_, m); }
  /// Of m rows, with those that fill up tiles.
  [[nodiscard]] int64_t packed_rows(int64_t m) const { return tiled(m) ? round_up_to_tile(m) : m; }
  [[nodiscard]] int64_t groups_at(int64_t m) const { return round_up_64(packed_rows(m) * weights_.code_bytes()); }
  [[nodiscard]] int64_t groups_bytes(int64_t m) const {
    return round_up_64(m * weights_.groups() * static_cast<int64_t>(sizeof(Int8Group)));
  }
  [[nodiscard]] int64_t finite_at(int64_t m) const { return groups_at(m) + groups_bytes(packed_rows(m)); }
  [[nodiscard]] Int8Rows rows(const LinearCall& call, int64_t i, int64_t count) const {
    return {reinterpret_cast<const int8_t*>(call.rows) + i * weights_.code_bytes(),
            reinterpret_cast<const Int8Group*>(call.rows + groups_at(call.m)) + i * weights_.groups(), count,
            tiled(call.m)};
  }

  [[nodiscard]] static std::byte* y_at(const LinearCall& call, int64_t i, int64_t n) {
    return call.y_row(i) + n * static_cast<int64_t>(size_in_bytes(call.y_dtype));
  }

  void product(const LinearCall& call, const LinearRectangle& part, float* y, int64_t y_stride,
               std::byte* scratch) const {
    int8_product(kernels_, weights_, {part.n_begin, part.n_end}, rows(call, part.m_begin, part.m_end - part.m_begin),
                 {epilogue_.bias.data(), epilogue_.clamp.lo, epilogue_.clamp.hi}, y, y_stride,
                 reinterpret_cast<uint8_t*>(scratch));
  }

  void run_narrow(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const {
    auto* const results = reinterpret_cast<float*>(scratch + round_up_64(weights_.scratch_bytes()));
    const int64_t columns = tile_columns(call.m);
    const int64_t tiles = columns / kInt8TileRows;
    for (int64_t first = part.n_begin; first < part.n_end; first += tiles) {
      const int64_t n = first * kInt8TileRows;
      for (int64_t m = part.m_begin; m < part.m_end; m += kRows) {
        const LinearRectangle tile{m, std::min(part.m_end, m + kRows), first, std::min(part.n_end, first + tiles)};
        product(call, tile, results, columns, scratch);
        const int64_t width = std::min(weights_.rows(), tile.n_end * kInt8TileRows) - n;
        for (int64_t i = m; i < tile.m_end; ++i)
          for (int64_t j = 0; j < width; ++j)
            store_float(y_at(call, i, n), call.y_dtype, j, results[(i - m) * columns + j]);
      }
    }
  }

  PackedLowBit weights_;
  const Int8Kernels& kernels_;
  LinearEpilogue epilogue_;
};

/// Symmetric weights of 8 bits whose rows are one group: the integer product of static codes, u = a + 128, and one
/// conversion at the end. Workspace: codes of all rows, then their groups. Scratch: a row as float32 and its codes, and
/// later the integers of a block and a row of its results.
class WholeRowEngine final : public LinearEngine {
 public:
  static bool can_run(const LowBitMatrix& matrix) {
    const LowBitParameters& p = matrix.parameters();
    return p.bits == 8 && p.kind == LowBitKind::kSymmetric && matrix.groups() == 1 && p.columns <= kMaxInt8Group;
  }

  static Result<std::unique_ptr<const LinearEngine>> create(const LowBitMatrix& matrix, bool asymmetric, CpuPath path,
                                                            LinearEpilogue epilogue) {
    const int64_t N = matrix.rows();
    const int64_t K = matrix.columns();
    std::vector<int32_t> codes(static_cast<size_t>(N * K));
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) codes[static_cast<size_t>(n * K + k)] = matrix.value(n, k);
    ISOBIT_ASSIGN_OR_RETURN(PackedWeights weights, pack_weights(codes.data(), N, K, 1, kStaticBlockTiles));
    const auto padded = static_cast<size_t>(weights.padded_n());
    epilogue.bias.resize(padded);
    auto engine = std::unique_ptr<WholeRowEngine>(new WholeRowEngine(std::move(weights), path, std::move(epilogue)));
    engine->scales_.resize(padded);
    engine->start_.resize(padded);
    if (asymmetric) engine->sums_.resize(padded);
    for (int64_t n = 0; n < N; ++n) {
      const auto at = static_cast<size_t>(n);
      int32_t sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += codes[static_cast<size_t>(n * K + k)];
      engine->scales_[at] = matrix.scale(n, 0);
      engine->start_[at] = static_cast<int32_t>(-storage_offset(Dtype::kS8) * sum);
      if (asymmetric) engine->sums_[at] = static_cast<float>(sum);
    }
    return std::unique_ptr<const LinearEngine>(std::move(engine));
  }

  [[nodiscard]] int64_t blocks() const override { return weights_.all_blocks().end; }
  [[nodiscard]] int64_t size_bytes() const override {
    return weights_.size_bytes() +
           static_cast<int64_t>((scales_.size() + sums_.size() + start_.size()) * kElementBytes);
  }
  [[nodiscard]] int64_t rows_bytes(int64_t m) const override {
    return packed_rows(m) * row_bytes() + round_up_64(m * static_cast<int64_t>(sizeof(Int8Group)));
  }
  [[nodiscard]] int64_t scratch_bytes(int64_t m) const override {
    return std::max((std::min(m, kStaticRows) + 1) * kColumns * kElementBytes, floats_bytes() + row_bytes());
  }

  bool quantize_row(const LinearCall& call, int64_t i, std::byte* scratch) const override {
    const void* x = call.x_row(i);
    Dtype dtype = call.x_dtype;
    if (dtype == Dtype::kF64) {
      widen_row(call, i, weights_.k(), reinterpret_cast<float*>(scratch));
      x = scratch;
      dtype = Dtype::kF32;
    }
    const bool tiled = takes_tiles(product_, weights_, call.m);
    auto* const codes = tiled ? scratch + floats_bytes() : call.rows + i * row_bytes();
    Int8Group& group = groups(call)[i];
    const bool finite = kernels_.quantize({.x = x,
                                           .type = int8_float(dtype),
                                           .columns = weights_.k(),
                                           .group = weights_.k(),
                                           .factor = 0,
                                           .asymmetric = !sums_.empty(),
                                           .is_unsigned = true,
                                           .codes = reinterpret_cast<int8_t*>(codes),
                                           .groups = &group});
    if (tiled)
      pack_activations_row(codes, Dtype::kU8, weights_.k(),
                           reinterpret_cast<uint8_t*>(call.rows) + tiled_row_at(i, row_bytes()), kTileBytes);
    if (!finite) group.scale = std::numeric_limits<float>::quiet_NaN();
    return finite;
  }

  void run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const override {
    const BlockRange blocks{static_cast<int32_t>(part.n_begin), static_cast<int32_t>(part.n_end)};
    const int64_t first = weights_.first_row(blocks.begin);
    const ActivationRows rows{reinterpret_cast<const uint8_t*>(call.rows) + part.m_begin * row_bytes(), row_bytes(), 1,
                              part.m_end - part.m_begin, takes_tiles(product_, weights_, call.m)};
    auto* const results = reinterpret_cast<float*>(scratch);
    product_in_pieces(product_, weights_, blocks, rows, start_.data() + first,
                      reinterpret_cast<int32_t*>(results + kColumns), [&](LinearSums sums) {
                        sums.m += part.m_begin;
                        sums.n += first;
                        finish(call, sums, results);
                      });
  }

 private:
  static constexpr int64_t kColumns = kStaticBlockTiles * kTileRows;  // of the widest block
  static constexpr int64_t kElementBytes = 4;

  WholeRowEngine(PackedWeights weights, CpuPath path, LinearEpilogue epilogue)
      : weights_(std::move(weights)),
        product_(linear_kernel(path)),
        kernels_(*int8_kernels(path)),
        epilogue_(std::move(epilogue)) {}

  [[nodiscard]] int64_t row_bytes() const { return packed_row_bytes(Dtype::kS8, weights_.k()); }
  [[nodiscard]] int64_t floats_bytes() const { return round_up_64(weights_.k() * kElementBytes); }
  /// Of m rows, with those that fill up tiles.
  [[nodiscard]] int64_t packed_rows(int64_t m) const {
    return takes_tiles(product_, weights_, m) ? round_up_to_tile(m) : m;
  }
  [[nodiscard]] Int8Group* groups(const LinearCall& call) const {
    return reinterpret_cast<Int8Group*>(call.rows + packed_rows(call.m) * row_bytes());
  }

  /// The rows and columns of y that the sums are of. results: for one row of them.
  void finish(const LinearCall& call, const LinearSums& sums, float* results) const {
    const int64_t width = std::min(weights_.n() - sums.n, sums.columns);
    Int8FinishArgs args{.d = static_cast<const int32_t*>(sums.acc),
                        .d_stride = sums.stride,
                        .rows = sums.rows,
                        .count = width,
                        .groups = groups(call) + sums.m,
                        .scales = scales_.data() + sums.n,
                        .sums = sums_.empty() ? nullptr : sums_.data() + sums.n,
                        .bias = epilogue_.bias.data() + sums.n,
                        .lo = epilogue_.clamp.lo,
                        .hi = epilogue_.clamp.hi,
                        .y = results,
                        .y_stride = call.y_stride};
    if (call.y_dtype == Dtype::kF32) {
      args.y = reinterpret_cast<float*>(call.y_row(sums.m)) + sums.n;
      return kernels_.finish(args);
    }
    args.rows = 1;
    for (int64_t i = 0; i < sums.rows; ++i, args.d += sums.stride, ++args.groups) {
      kernels_.finish(args);
      std::byte* const y = call.y_row(sums.m + i) + sums.n * static_cast<int64_t>(size_in_bytes(call.y_dtype));
      for (int64_t j = 0; j < width; ++j) store_float(y, call.y_dtype, j, results[j]);
    }
  }

  PackedWeights weights_;
  LinearKernel product_;
  const Int8Kernels& kernels_;
  LinearEpilogue epilogue_;
  std::vector<float> scales_, sums_;  // [padded N]; no sums: the activations are symmetric
  std::vector<int32_t> start_;        // [padded N]
};

}  // namespace

Result<std::unique_ptr<const LinearEngine>> make_linear_engine(const LowBitMatrix& matrix,
                                                               LinearActivations activations, CpuPath path,
                                                               LinearEpilogue epilogue, std::string_view name) {
  using Engine = std::unique_ptr<const LinearEngine>;
  const bool asymmetric = activations == LinearActivations::kInt8Asymmetric;
  if (activations == LinearActivations::kFloat) {
    if (path == CpuPath::kReference) return Engine(std::make_unique<FloatReferenceEngine>(matrix, std::move(epilogue)));
    ISOBIT_ASSIGN_OR_RETURN(PackedFloatWeights weights, pack_float_weights(matrix));
    return Engine(std::make_unique<FloatEngine>(std::move(weights), float_linear_kernel(path), std::move(epilogue)));
  }
  if (path == CpuPath::kReference)
    return Engine(std::make_unique<Int8ReferenceEngine>(matrix, asymmetric, std::move(epilogue)));
  if (WholeRowEngine::can_run(matrix)) return WholeRowEngine::create(matrix, asymmetric, path, std::move(epilogue));
  ISOBIT_ASSIGN_OR_RETURN(PackedLowBit weights, pack_low_bit(matrix, asymmetric, name));
  return Engine(std::make_unique<Int8Engine>(std::move(weights), *int8_kernels(path), std::move(epilogue)));
}

}  // namespace isobit
