// SPDX-License-Identifier: Apache-2.0
#include "linear/layer_engine.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "linear/layer_parts.h"
#include "linear/layer_reference.h"

namespace isobit {
namespace {

/// Row i of x as float32.
void widen_row(const LinearCall& call, int64_t i, int64_t columns, float* out) {
  for (int64_t k = 0; k < columns; ++k) out[k] = reference_load(call.x_row(i), call.x_dtype, k);
}

int64_t bytes_of(const ReferenceWeights& w) {
  return static_cast<int64_t>(w.v.size() * sizeof(int16_t) + (w.scales.size() + w.offsets.size()) * sizeof(float) +
                              w.sums.size() * sizeof(int64_t));
}

class FloatReference final : public LinearEngine {
 public:
  FloatReference(const LowBitMatrix& matrix, LinearEpilogue epilogue)
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
        reference_store(call.y_row(i), call.y_dtype, n,
                        reference_act(static_cast<float>(
                                          reference_sum(weights_, n, x, epilogue_.bias[static_cast<size_t>(n)]).value),
                                      epilogue_.clamp));
    }
  }

 private:
  ReferenceWeights weights_;
  LinearEpilogue epilogue_;
};

class Int8Reference final : public LinearEngine {
 public:
  Int8Reference(const LowBitMatrix& matrix, bool asymmetric, LinearEpilogue epilogue)
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
        reference_store(call.y_row(i), call.y_dtype, n,
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

}  // namespace

Result<std::unique_ptr<const LinearEngine>> make_linear_engine(const LowBitMatrix& matrix,
                                                               LinearActivations activations, CpuPath path,
                                                               LinearEpilogue epilogue, std::string_view name) {
  using Engine = std::unique_ptr<const LinearEngine>;
  const bool asymmetric = activations == LinearActivations::kInt8Asymmetric;
  (void)path;
  (void)name;
  if (activations == LinearActivations::kFloat)
    return Engine(std::make_unique<FloatReference>(matrix, std::move(epilogue)));
  return Engine(std::make_unique<Int8Reference>(matrix, asymmetric, std::move(epilogue)));
}

}  // namespace isobit
