// SPDX-License-Identifier: Apache-2.0
// The float forward: numerics.md, section 7, first line. A sequence's result does not depend on the batch around it.
#include "gru/float.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "core/float_mode.h"
#include "core/number_text.h"

namespace isobit {
namespace {

Status invalid(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

/// Refuses a span whose size is not the product of `shape`.
Status check_size(const char* name, size_t size, const char* axes, std::initializer_list<int64_t> shape) {
  int64_t expected = 1;
  bool overflow = false;
  std::string text;
  for (const int64_t dimension : shape) {
    overflow = overflow || __builtin_mul_overflow(expected, dimension, &expected);
    text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  }
  if (!overflow && size == static_cast<size_t>(expected)) return {};
  return invalid(std::string(name) + " has " + std::to_string(size) + " values, must have the shape [" + axes +
                 "] = [" + text + "]");
}

/// Refuses values of [rows, middle, columns] that are not finite.
Status check_finite(const char* name, std::span<const float> values, int64_t middle, int64_t columns) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const auto index = static_cast<int64_t>(i);
    return invalid(std::string(name) + "[" + std::to_string(index / columns / middle) + ", " +
                   std::to_string(index / columns % middle) + ", " + std::to_string(index % columns) + "] is " +
                   number_text(static_cast<double>(values[i])) + ", must be finite");
  }
  return {};
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace

Status FloatGru::check(const GruFloatArguments& a) const {
  if (a.steps < 0 || a.batch < 0) {
    return invalid("steps " + std::to_string(a.steps) + " and batch " + std::to_string(a.batch) +
                   " must be at least 0");
  }
  const int64_t hidden = hidden_size_;
  const auto states = static_cast<int64_t>(layers_.size());
  ISOBIT_RETURN_IF_ERROR(check_size("x", a.x.size(), "T, N, C", {a.steps, a.batch, input_size_}));
  if (!a.y.empty()) {
    ISOBIT_RETURN_IF_ERROR(
        check_size("y", a.y.size(), "T, N, directions * H", {a.steps, a.batch, directions_ * hidden_size_}));
  }
  if (!a.h0.empty()) {
    ISOBIT_RETURN_IF_ERROR(check_size("h0", a.h0.size(), "layers * directions, N, H", {states, a.batch, hidden}));
  }
  if (!a.h_last.empty()) {
    ISOBIT_RETURN_IF_ERROR(
        check_size("h_last", a.h_last.size(), "layers * directions, N, H", {states, a.batch, hidden}));
  }
  if (!a.lengths.empty()) {
    ISOBIT_RETURN_IF_ERROR(check_size("lengths", a.lengths.size(), "N", {a.batch}));
    for (size_t n = 0; n < a.lengths.size(); ++n) {
      if (a.lengths[n] < 0 || a.lengths[n] > a.steps) {
        return invalid("lengths[" + std::to_string(n) + "] is " + std::to_string(a.lengths[n]) + ", must be 0 to " +
                       std::to_string(a.steps));
      }
    }
  }
  if (!(a.zoneout >= 0.0f && a.zoneout <= 1.0f)) {
    return invalid("zoneout is " + number_text(static_cast<double>(a.zoneout)) + ", must be 0 to 1");
  }
  ISOBIT_RETURN_IF_ERROR(check_finite("x", a.x, a.batch, input_size_));
  return check_finite("h0", a.h0, a.batch, hidden);
}

PackedMatrix::PackedMatrix(const std::vector<float>& weights, const std::vector<float>& bias, int64_t outputs,
                           int64_t depth)
    : outputs_(outputs), depth_(depth) {
  const int64_t padded = (outputs + kPanel - 1) / kPanel * kPanel;
  panels_.resize(static_cast<size_t>(padded * depth));
  bias_ = bias;
  bias_.resize(static_cast<size_t>(padded));
  for (int64_t c = 0; c < outputs; ++c) {
    float* const panel = panels_.data() + c / kPanel * kPanel * depth + c % kPanel;
    for (int64_t k = 0; k < depth; ++k) panel[k * kPanel] = weights[static_cast<size_t>(c * depth + k)];
  }
}

template <int kCount>
void PackedMatrix::multiply_block(const float* const* rows, float* out) const {
  for (int64_t c = 0; c < outputs_; c += kPanel) {
    const float* const panel = panels_.data() + c * depth_;
    float sum[kCount][kPanel] = {};
    for (int64_t k = 0; k < depth_; ++k) {
      for (int i = 0; i < kCount; ++i) {
        const float value = rows[i][k];
        for (int j = 0; j < kPanel; ++j) sum[i][j] += value * panel[k * kPanel + j];
      }
    }
    const int64_t columns = std::min(kPanel, outputs_ - c);
    for (int i = 0; i < kCount; ++i) {
      for (int64_t j = 0; j < columns; ++j) out[i * outputs_ + c + j] = sum[i][j] + bias_[static_cast<size_t>(c + j)];
    }
  }
}

void PackedMatrix::multiply(const float* const* rows, int64_t count, float* out) const {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) multiply_block<4>(rows + i, out + i * outputs_);
  for (; i < count; ++i) multiply_block<1>(rows + i, out + i * outputs_);
}

FloatGru::FloatGru(const GruWeights& weights)
    : directions_(weights.directions), input_size_(weights.input_size()), hidden_size_(weights.hidden_size()) {
  for (const GruLayerWeights& layer : weights.layers) {
    layers_.push_back({PackedMatrix(layer.W, layer.bw, 3 * hidden_size_, layer.input_size),
                       PackedMatrix(layer.R, layer.br, 3 * hidden_size_, hidden_size_)});
  }
}

void FloatGru::run(const GruFloatArguments& arguments, int64_t begin, int64_t end, GruObserver* observer) const {
  const auto layer_count = static_cast<int64_t>(layers_.size()) / directions_;
  const int64_t width = directions_ * hidden_size_;
  std::vector<float> below;  // y of the layer below and of this one, [T, count, width]
  std::vector<float> above;
  for (int64_t first = begin; first < end; first += kSequences) {
    const int64_t count = std::min(kSequences, end - first);
    const Rows inner{count, 0, width};
    for (int64_t l = 0; l < layer_count; ++l) {
      const bool top = l + 1 == layer_count;
      if (!top) above.resize(static_cast<size_t>(arguments.steps * count * width));
      const float* const in = l == 0 ? arguments.x.data() : below.data();
      const Rows in_rows = l == 0 ? Rows{arguments.batch, first, input_size_} : inner;
      float* const out = top ? (arguments.y.empty() ? nullptr : arguments.y.data()) : above.data();
      const Rows out_rows = top ? Rows{arguments.batch, first, width} : inner;
      for (int64_t d = 0; d < directions_; ++d) {
        run_direction(arguments, l * directions_ + d, first, count, in, in_rows, out, out_rows, observer);
      }
      below.swap(above);
    }
  }
}

void FloatGru::run_direction(const GruFloatArguments& arguments, int64_t index, int64_t first, int64_t count,
                             const float* in, const Rows& in_rows, float* out, const Rows& out_rows,
                             GruObserver* observer) const {
  const int64_t hidden = hidden_size_;
  const auto hidden_count = static_cast<size_t>(hidden);
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const int64_t direction = index % directions_;
  const int64_t state_offset = (index * arguments.batch + first) * hidden;
  std::vector<float> state(static_cast<size_t>(count * hidden));
  if (!arguments.h0.empty()) std::copy_n(arguments.h0.data() + state_offset, count * hidden, state.data());
  std::vector<float> ih(static_cast<size_t>(count * 3 * hidden));
  std::vector<float> hh(ih.size());
  std::vector<float> gates(6 * hidden_count);  // u_in, r_in, n_in, u, r, n of one sequence
  const auto length = [&](int64_t s) {
    return arguments.lengths.empty() ? arguments.steps : arguments.lengths[static_cast<size_t>(first + s)];
  };

  for (int64_t j = 0; j < arguments.steps; ++j) {  // in the direction's own time order
    int64_t sequences[kSequences];
    const float* x[kSequences];
    const float* h[kSequences];
    int64_t active = 0;
    for (int64_t s = 0; s < count; ++s) {
      if (j >= length(s)) continue;
      sequences[active] = s;
      x[active] = in + in_rows.at(direction == 1 ? length(s) - 1 - j : j, s);
      h[active] = state.data() + s * hidden;
      ++active;
    }
    if (active == 0) break;
    layer.W.multiply(x, active, ih.data());
    layer.R.multiply(h, active, hh.data());
    for (int64_t a = 0; a < active; ++a) {
      const int64_t s = sequences[a];
      const int64_t step = direction == 1 ? length(s) - 1 - j : j;
      const float* const w = ih.data() + a * 3 * hidden;
      const float* const r = hh.data() + a * 3 * hidden;
      float* const new_state = state.data() + s * hidden;
      float* const g = gates.data();
      for (int64_t c = 0; c < 2 * hidden; ++c) {
        g[c] = w[c] + r[c];
        g[3 * hidden + c] = sigmoid(g[c]);
      }
      for (int64_t c = 0; c < hidden; ++c) {
        g[2 * hidden + c] = w[2 * hidden + c] + g[4 * hidden + c] * r[2 * hidden + c];
        const float n = g[5 * hidden + c] = std::tanh(g[2 * hidden + c]);
        const float u = g[3 * hidden + c];
        const float moved = u * new_state[c] + (1.0f - u) * n;
        new_state[c] =
            arguments.zoneout == 0.0f ? moved : arguments.zoneout * new_state[c] + (1.0f - arguments.zoneout) * moved;
      }
      if (out != nullptr) std::copy_n(new_state, hidden, out + out_rows.at(step, s) + direction * hidden);
      if (observer == nullptr) continue;
      const auto show = [&](GruTensor tensor, const float* values, int64_t size) {
        observer->observe(tensor, index, first + s, step, {values, static_cast<size_t>(size)});
      };
      show(kX, x[a], in_rows.width);
      show(kIh, w, 3 * hidden);
      show(kHh, r, 3 * hidden);
      show(kUIn, g, hidden);
      show(kRIn, g + hidden, hidden);
      show(kNIn, g + 2 * hidden, hidden);
      show(kU, g + 3 * hidden, hidden);
      show(kRGate, g + 4 * hidden, hidden);
      show(kN, g + 5 * hidden, hidden);
      show(kH, new_state, hidden);
    }
  }
  if (!arguments.h_last.empty()) std::copy(state.begin(), state.end(), arguments.h_last.data() + state_offset);
}

Result<GruFloatModel> GruFloatModel::create(const GruWeights& weights) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_weights(weights));
  GruFloatModel model;
  model.gru_ = std::make_shared<const FloatGru>(weights);
  return model;
}

Status GruFloatModel::forward(const GruFloatArguments& arguments, GruObserver* observer) const {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(gru_->check(arguments));
  std::fill(arguments.y.begin(), arguments.y.end(), 0.0f);  // past a sequence's length
  gru_->run(arguments, 0, arguments.batch, observer);
  return {};
}

Status gru_forward_float(const GruWeights& weights, const GruFloatArguments& arguments, GruObserver* observer) {
  ISOBIT_ASSIGN_OR_RETURN(const GruFloatModel model, GruFloatModel::create(weights));
  return model.forward(arguments, observer);
}

}  // namespace isobit
