// SPDX-License-Identifier: Apache-2.0
// Numerics.md, section 14, as it stands there.
#ifndef ISOBIT_GRU_TRAINING_REFERENCE_H_
#define ISOBIT_GRU_TRAINING_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gru/training/direction.h"
#include "gru/training/kernels.h"

namespace isobit {

/// chain(): a(k) and b(k) of `count` terms.
template <typename A, typename B>
float reference_chain(int64_t count, const A& a, const B& b) {
  constexpr int64_t kTerms = 256;
  float sum = 0.0f;
  for (int64_t first = 0; first < count; first += kTerms) {
    float chunk = 0.0f;
    for (int64_t k = first; k < std::min(count, first + kTerms); ++k) chunk = std::fma(a(k), b(k), chunk);
    sum = sum + chunk;
  }
  return sum;
}

inline float reference_e(float x) {
  if (std::isnan(x)) return x;
  x = x < -87.0f ? -87.0f : x;
  const float n = std::nearbyint(x * 0x1.715476p+0f);
  float r = std::fma(n, -0x1.62e4p-1f, x);
  r = std::fma(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6a2434p-10f;
  for (const float c : {0x1.1239e2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f}) p = std::fma(p, r, c);
  return std::ldexp(1.0f + std::fma(r * r, p, r), static_cast<int>(n));
}
inline float reference_sigmoid(float x) {
  const float z = reference_e(-std::abs(x));
  return (x < 0.0f ? z : 1.0f) / (1.0f + z);
}
inline float reference_tanh(float x) {
  if (std::abs(x) < 0.625f) {
    const float s = x * x;
    float p = -0x1.76ac3p-8f;
    for (const float c : {0x1.5256dcp-6f, -0x1.b8444ap-5f, 0x1.110768p-3f, -0x1.555534p-2f}) p = std::fma(p, s, c);
    return std::fma(x * s, p, x);
  }
  const float t = reference_e(-2.0f * std::abs(x));
  return std::copysign((1.0f - t) / (1.0f + t), x);
}

inline void reference_forward(const TrainingDirection& d, const TrainingForward& f) {
  const int64_t H = d.hidden;
  for (int64_t n = 0; n < d.batch; ++n) {
    std::vector<float> h(static_cast<size_t>(H));
    if (d.first != nullptr) std::copy_n(d.first + n * H, H, h.begin());
    for (int64_t i = 0; i < d.steps; ++i) {
      const int64_t t = d.step(i), row = t * d.batch + n;
      float* const y = f.y + row * d.y_row;
      if (t >= d.length(n)) {
        std::fill_n(y, H, 0.0f);
        continue;
      }
      const float* const x = d.x + row * d.inputs;
      const auto product = [&](std::span<const float> w, std::span<const float> bias, const float* v, int64_t size,
                               int64_t c) {
        return reference_chain(
                   size, [&](int64_t k) { return w[static_cast<size_t>(c * size + k)]; },
                   [&](int64_t k) { return v[k]; }) +
               bias[static_cast<size_t>(c)];
      };
      for (int64_t j = 0; j < H; ++j) {
        float ih[3], hh[3];
        for (int64_t gate = 0; gate < 3; ++gate) {
          ih[gate] = product(d.weights.W, d.weights.bw, x, d.inputs, gate * H + j);
          hh[gate] = product(d.weights.R, d.weights.br, h.data(), H, gate * H + j);
        }
        const float u = reference_sigmoid(ih[0] + hh[0]), r = reference_sigmoid(ih[1] + hh[1]), q = hh[2];
        const float tanh = reference_tanh(std::fma(r, q, ih[2])), before = h[static_cast<size_t>(j)];
        float* const saved = f.saved + row * 4 * H + j;
        saved[0] = u, saved[H] = r, saved[2 * H] = tanh, saved[3 * H] = q;
        const bool held = d.mask != nullptr && d.mask[row * d.y_row + j] == 0;
        y[j] = held ? before : std::fma(u, before - tanh, tanh);
      }
      std::copy_n(y, H, h.begin());
    }
    if (f.last != nullptr) std::copy(h.begin(), h.end(), f.last + n * H);
  }
}

/// Sums of a grid of `columns` columns: g, rest, and which clamps passed or were given a number above, of (row,
/// column).
template <typename G, typename Rest, typename Passed, typename Above>
GruGridGradient reference_grid(const TrainingDirection& d, int64_t columns, const G& g, const Rest& rest,
                               const Passed& passed, const Above& above) {
  std::vector<int64_t> valid;
  for (int64_t row = 0; row < d.rows(); ++row)
    if (row / d.batch < d.length(row % d.batch)) valid.push_back(row);
  const auto sum_of = [&](const auto& factor) {
    std::vector<float> sums;
    for (int64_t c = 0; c < columns; ++c)
      sums.push_back(reference_chain(
          static_cast<int64_t>(valid.size()), [&](int64_t m) { return g(valid[static_cast<size_t>(m)], c); },
          [&](int64_t m) { return factor(valid[static_cast<size_t>(m)], c); }));
    return reference_chain(
        columns, [&](int64_t c) { return sums[static_cast<size_t>(c)]; }, [](int64_t) { return 1.0f; });
  };
  return {.below = sum_of([&](int64_t row, int64_t c) { return passed(row, c) || above(row, c) ? 0.0f : 1.0f; }),
          .above = sum_of([&](int64_t row, int64_t c) { return above(row, c) ? 1.0f : 0.0f; }),
          .inside = sum_of(rest)};
}
inline GruGridGradient reference_grid_of_inputs(const TrainingDirection& d, const float* g, const InputClamps& x) {
  const int64_t C = d.inputs;
  return reference_grid(
      d, C, [=](int64_t row, int64_t c) { return g[row * C + c]; },
      [=](int64_t row, int64_t c) { return x.rests[row * C + c]; },
      [=](int64_t row, int64_t c) { return x.passes[row * C + c] != 0; },
      [=](int64_t row, int64_t c) { return x.above[row * C + c] != 0; });
}

inline void reference_backward(const TrainingDirection& d, const TrainingBackward& b) {
  const int64_t H = d.hidden, C = d.inputs;
  std::vector<float> gx(static_cast<size_t>(d.rows() * 3 * H)), gh(gx.size());
  std::vector<float> behind(b.grids == nullptr ? 0 : static_cast<size_t>(d.rows() * kClamps * H));  // clamps, by bit
  const auto at = [](std::vector<float>& v, int64_t i) -> float& { return v[static_cast<size_t>(i)]; };
  const auto before = [&](int64_t t, int64_t n, int64_t j) {
    const float* const h = d.before(b.y, t, n);
    return h == nullptr ? 0.0f : h[j];
  };
  for (int64_t n = 0; n < d.batch; ++n) {
    std::vector<float> g(static_cast<size_t>(H)), kept(static_cast<size_t>(H));
    if (b.last_gradient != nullptr) std::copy_n(b.last_gradient + n * H, H, g.begin());
    for (int64_t i = d.steps - 1; i >= 0; --i) {
      const int64_t t = d.step(i), row = t * d.batch + n;
      if (t >= d.length(n)) continue;
      for (int64_t j = 0; j < H; ++j) {
        const float* const saved = b.saved + row * 4 * H + j;
        const float u = saved[0], r = saved[H], tanh = saved[2 * H], q = saved[3 * H], h = before(t, n, j);
        const bool held = d.mask != nullptr && d.mask[row * d.y_row + j] == 0;
        const auto passed = [&](int bit, float value) {
          return b.passes == nullptr || (b.passes[row * H + j] >> bit & 1) != 0 ? value : 0.0f;
        };
        const auto clamped = [&](int bit, float value) {
          if (b.grids != nullptr) at(behind, (row * kClamps + bit) * H + j) = value;
          return passed(bit, value);
        };
        const float all = b.dy[row * d.y_row + j] + at(g, j), e = clamped(kPassState, held ? 0.0f : all);
        const float da = clamped(kPassGate + 2, std::fma(-tanh, tanh, 1.0f) * ((1.0f - u) * e));
        const float dr = clamped(kPassGate + 1, (r * (1.0f - r)) * (q * da));
        const float du = clamped(kPassGate, (u * (1.0f - u)) * ((h - tanh) * e));
        const int64_t first = row * 3 * H + j;
        at(gx, first) = clamped(kPassIh, du), at(gh, first) = clamped(kPassHh, du);
        at(gx, first + H) = clamped(kPassIh + 1, dr), at(gh, first + H) = clamped(kPassHh + 1, dr);
        at(gx, first + 2 * H) = clamped(kPassIh + 2, da), at(gh, first + 2 * H) = clamped(kPassHh + 2, r * da);
        at(kept, j) = held ? all : u * e;
      }
      for (int64_t k = 0; k < H; ++k)
        at(g, k) = at(kept, k) + reference_chain(
                                     3 * H, [&](int64_t c) { return at(gh, row * 3 * H + c); },
                                     [&](int64_t c) { return d.weights.R[static_cast<size_t>(c * H + k)]; });
    }
    if (b.first_gradient != nullptr) std::copy(g.begin(), g.end(), b.first_gradient + n * H);
  }

  std::vector<std::pair<int64_t, int64_t>> valid;  // (t, n)
  for (int64_t t = 0; t < d.steps; ++t)
    for (int64_t n = 0; n < d.batch; ++n)
      if (t < d.length(n)) valid.emplace_back(t, n);
  const auto over_valid = [&](const std::vector<float>& gradients, int64_t c, const auto& factor) {
    const auto term = [&](int64_t m) {
      const auto& [t, n] = valid[static_cast<size_t>(m)];
      return gradients[static_cast<size_t>((t * d.batch + n) * 3 * H + c)];
    };
    return reference_chain(static_cast<int64_t>(valid.size()), term, [&](int64_t m) {
      const auto& [t, n] = valid[static_cast<size_t>(m)];
      return factor(t, n);
    });
  };
  const auto one = [](int64_t, int64_t) { return 1.0f; };
  for (int64_t c = 0; c < 3 * H; ++c) {
    for (int64_t k = 0; k < C; ++k)
      b.gradients.W[static_cast<size_t>(c * C + k)] =
          over_valid(gx, c, [&](int64_t t, int64_t n) { return d.x[(t * d.batch + n) * C + k]; });
    for (int64_t k = 0; k < H; ++k)
      b.gradients.R[static_cast<size_t>(c * H + k)] =
          over_valid(gh, c, [&](int64_t t, int64_t n) { return before(t, n, k); });
    b.gradients.bw[static_cast<size_t>(c)] = over_valid(gx, c, one);
    b.gradients.br[static_cast<size_t>(c)] = over_valid(gh, c, one);
  }
  if (b.grids != nullptr) {
    const auto sums = [&](int bit, int64_t clamps) {
      return reference_grid(
          d, clamps * H, [&](int64_t row, int64_t c) { return at(behind, (row * kClamps + bit + c / H) * H + c % H); },
          [&](int64_t row, int64_t c) { return b.rests[(row * kClamps + bit + c / H) * H + c % H]; },
          [&](int64_t row, int64_t c) { return (b.passes[row * H + c % H] >> (bit + c / H) & 1) != 0; },
          [&](int64_t row, int64_t c) { return (b.above[row * H + c % H] >> (bit + c / H) & 1) != 0; });
    };
    GruGridGradients& grids = *b.grids;
    grids = {};
    grids[kIh] = sums(kPassIh, 3), grids[kHh] = sums(kPassHh, 3);
    grids[kUIn] = sums(kPassGate, 1), grids[kRIn] = sums(kPassGate + 1, 1), grids[kNIn] = sums(kPassGate + 2, 1);
    grids[kH] = sums(kPassState, 1);
  }
  for (int64_t row = 0; b.dx != nullptr && row < d.rows(); ++row)
    for (int64_t k = 0; k < C; ++k) {
      float sum = 0.0f;
      if (row / d.batch < d.length(row % d.batch))
        sum = reference_chain(
            3 * H, [&](int64_t c) { return at(gx, row * 3 * H + c); },
            [&](int64_t c) { return d.weights.W[static_cast<size_t>(c * C + k)]; });
      b.dx[row * C + k] = b.dx_add == nullptr ? sum : b.dx_add[row * C + k] + sum;
    }
}

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_REFERENCE_H_
