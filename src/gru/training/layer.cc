// SPDX-License-Identifier: Apache-2.0
#include "gru/training/layer.h"

#include <algorithm>
#include <cstring>

#include "gru/training/grids.h"
#include "gru/training/parts.h"
#include "isobit/cpu.h"

namespace isobit {
namespace {

constexpr int64_t kWidestPanel = 32;
constexpr int64_t kRowsTogether = 64;  // of W x, of several steps

/// Panels of b(k, j) of `terms` by `columns`. column(k, j, count, to) writes b(k, j) to b(k, j + count - 1).
template <typename Write>
void pack(const GruTrainingKernels& kernels, int64_t terms, int64_t columns, float* to, ThreadPool* pool,
          const Write& write) {
  in_parts(pool, pieces(columns, kernels.panel), [&](int, int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t j = panel * kernels.panel, count = std::min(kernels.panel, columns - j);
      float* const first = to + panel * terms * kernels.panel;
      for (int64_t k = 0; k < terms; ++k) {
        write(k, j, count, first + k * kernels.panel);
        std::fill(first + k * kernels.panel + count, first + (k + 1) * kernels.panel, 0.0f);
      }
    }
  });
}
int64_t packed_floats(int64_t terms, int64_t columns) { return terms * pieces(columns, kWidestPanel) * kWidestPanel; }

/// w [columns, terms], so that its rows are the columns of b.
auto transposed(const float* w, int64_t terms) {
  return [=](int64_t k, int64_t j, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = w[(j + i) * terms + k];
  };
}
/// w [terms, columns].
auto as_it_is(const float* w, int64_t columns) {
  return [=](int64_t k, int64_t j, int64_t count, float* to) {
    std::memcpy(to, w + k * columns + j, static_cast<size_t>(count) * sizeof(float));
  };
}

/// What forward and backward keep in `scratch`.
struct ForwardPlaces {
  float *W, *R, *state, *ih, *hh;
  int64_t ih_floats;  // of a thread

  ForwardPlaces(Scratch& scratch, int64_t batch, int64_t inputs, int64_t hidden, int threads) {
    const int64_t rows = std::max(batch, kRowsTogether);
    ih_floats = rows * 3 * hidden;
    W = scratch.take<float>(packed_floats(inputs, 3 * hidden));
    R = scratch.take<float>(packed_floats(hidden, 3 * hidden));
    state = scratch.take<float>(batch * hidden);
    ih = scratch.take<float>(ih_floats * threads);
    hh = scratch.take<float>(batch * 3 * hidden);
  }
};
struct BackwardPlaces {
  int64_t* place;  // [T, N]: of a step among those within their lengths; -1: past it
  float *gx, *gh;  // [steps within their lengths, 3H]
  float *g, *kept, *zeros, *packed;
  float *clamped, *grid_sums;  // [steps within their lengths, 4H]; null: no gradients of grids

  BackwardPlaces(Scratch& scratch, int64_t steps, int64_t batch, int64_t inputs, int64_t hidden, bool grids) {
    const int64_t rows = steps * batch;
    place = scratch.take<int64_t>(rows);
    gx = scratch.take<float>(rows * 3 * hidden);
    gh = scratch.take<float>(rows * 3 * hidden);
    g = scratch.take<float>(batch * hidden);
    kept = scratch.take<float>(batch * hidden);
    zeros = scratch.take<float>(hidden);
    packed = scratch.take<float>(std::max({packed_floats(3 * hidden, hidden), packed_floats(3 * hidden, inputs),
                                           packed_floats(rows, inputs), packed_floats(rows, hidden)}));
    clamped = grids ? scratch.take<float>(rows * 4 * hidden) : nullptr;
    grid_sums = grids ? scratch.take<float>(grid_sums_floats(hidden)) : nullptr;
  }
};

/// Calls body(n, count) for neighbours in [begin, end) of which `is_in` holds.
template <typename IsIn, typename Body>
void for_runs(int64_t begin, int64_t end, const IsIn& is_in, const Body& body) {
  for (int64_t n = begin; n < end;) {
    if (!is_in(n)) {
      ++n;
      continue;
    }
    int64_t last = n + 1;
    while (last < end && is_in(last)) ++last;
    body(n, last - n);
    n = last;
  }
}

}  // namespace

GruTrainingKernels training_kernels_of(CpuPath path) {
  GruTrainingKernels kernels{};
#define ISOBIT_GRU_TRAINING_KERNELS(of_path, name) \
  if (CpuPath::of_path <= std::max(path, CpuPath::kScalar)) kernels = name();
#include "gru/training/kernels.inc"
#undef ISOBIT_GRU_TRAINING_KERNELS
  return kernels;
}

int64_t training_scratch_bytes(int64_t steps, int64_t batch, int64_t inputs, int64_t hidden, int threads, bool grids) {
  Scratch forward(nullptr), backward(nullptr);
  ForwardPlaces(forward, batch, inputs, hidden, threads);
  BackwardPlaces(backward, steps, batch, inputs, hidden, grids);
  return std::max(forward.used(), backward.used());
}

void train_forward(const TrainingDirection& d, const TrainingForward& f, const GruTrainingKernels& kernels,
                   std::byte* scratch, ThreadPool* pool) {
  const int64_t N = d.batch, C = d.inputs, H = d.hidden;
  Scratch memory(scratch);
  const ForwardPlaces at(memory, N, C, H, pool == nullptr ? 1 : pool->threads());
  pack(kernels, C, 3 * H, at.W, pool, transposed(d.weights.W.data(), C));
  pack(kernels, H, 3 * H, at.R, pool, transposed(d.weights.R.data(), H));
  in_parts(pool, N, [&](int part, int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    // Rows of all sequences lie behind each other for many steps, those of some only in one.
    const int64_t together = count == N ? std::max<int64_t>(kRowsTogether / N, 1) : 1;
    float* const ih = at.ih + part * at.ih_floats;
    float *const state = at.state + begin * H, *const hh = at.hh + begin * 3 * H;
    if (d.first == nullptr) {
      std::fill_n(state, count * H, 0.0f);
    } else {
      std::copy_n(d.first + begin * H, count * H, state);
    }
    int64_t ih_first = 0, ih_end = 0;  // steps whose W x is there
    for (int64_t i = 0; i < d.steps; ++i) {
      const int64_t t = d.step(i);
      if (t < ih_first || t >= ih_end) {
        ih_first = d.reverse ? std::max<int64_t>(t + 1 - together, 0) : t;
        ih_end = d.reverse ? t + 1 : std::min(t + together, d.steps);
        kernels.product({.a = d.x + (ih_first * N + begin) * C,
                         .a_row = C,
                         .a_term = 1,
                         .b = at.W,
                         .rows = (ih_end - ih_first) * count,
                         .terms = C,
                         .columns = 3 * H,
                         .out = ih,
                         .out_row = 3 * H,
                         .add = d.weights.bw.data(),
                         .add_row = 0});
      }
      kernels.product({.a = state,
                       .a_row = H,
                       .a_term = 1,
                       .b = at.R,
                       .rows = count,
                       .terms = H,
                       .columns = 3 * H,
                       .out = hh,
                       .out_row = 3 * H,
                       .add = d.weights.br.data(),
                       .add_row = 0});
      for (int64_t n = 0; n < count; ++n) {
        const int64_t row = t * N + begin + n;
        float* const y = f.y + row * d.y_row;
        if (t >= d.length(begin + n)) {
          std::fill_n(y, H, 0.0f);
          continue;
        }
        kernels.forward({.ih = ih + ((t - ih_first) * count + n) * 3 * H,
                         .hh = hh + n * 3 * H,
                         .h = state + n * H,
                         .mask = d.mask == nullptr ? nullptr : d.mask + row * d.y_row,
                         .saved = f.saved + row * 4 * H,
                         .y = y,
                         .units = H});
        std::copy_n(y, H, state + n * H);
      }
    }
    if (f.last != nullptr) std::copy_n(state, count * H, f.last + begin * H);
  });
}

void train_backward(const TrainingDirection& d, const TrainingBackward& b, const GruTrainingKernels& kernels,
                    std::byte* scratch, ThreadPool* pool) {
  const int64_t N = d.batch, C = d.inputs, H = d.hidden;
  Scratch memory(scratch);
  const BackwardPlaces at(memory, d.steps, N, C, H, b.grids != nullptr);
  int64_t valid = 0;
  for (int64_t row = 0; row < d.rows(); ++row) at.place[row] = row / N < d.length(row % N) ? valid++ : -1;
  std::fill_n(at.zeros, H, 0.0f);
  const auto before = [&](int64_t row) {
    const float* const h = d.before(b.y, row / N, row % N);
    return h == nullptr ? at.zeros : h;
  };

  pack(kernels, 3 * H, H, at.packed, pool, as_it_is(d.weights.R.data(), H));
  in_parts(pool, N, [&](int, int64_t begin, int64_t end) {
    float* const g = at.g + begin * H;
    if (b.last_gradient == nullptr) {
      std::fill_n(g, (end - begin) * H, 0.0f);
    } else {
      std::copy_n(b.last_gradient + begin * H, (end - begin) * H, g);
    }
    for (int64_t i = d.steps - 1; i >= 0; --i) {
      const int64_t t = d.step(i);
      const auto is_in = [&](int64_t n) { return at.place[t * N + n] >= 0; };
      for_runs(begin, end, is_in, [&](int64_t first, int64_t count) {
        for (int64_t n = first; n < first + count; ++n) {
          const int64_t row = t * N + n, place = at.place[row];
          kernels.backward({.saved = b.saved + row * 4 * H,
                            .h = before(row),
                            .dy = b.dy + row * d.y_row,
                            .mask = d.mask == nullptr ? nullptr : d.mask + row * d.y_row,
                            .passes = b.passes == nullptr ? nullptr : b.passes + row * H,
                            .g = at.g + n * H,
                            .gx = at.gx + place * 3 * H,
                            .gh = at.gh + place * 3 * H,
                            .b = at.kept + n * H,
                            .clamped = at.clamped == nullptr ? nullptr : at.clamped + place * 4 * H,
                            .units = H});
        }
        kernels.product({.a = at.gh + at.place[t * N + first] * 3 * H,
                         .a_row = 3 * H,
                         .a_term = 1,
                         .b = at.packed,
                         .rows = count,
                         .terms = 3 * H,
                         .columns = H,
                         .out = at.g + first * H,
                         .out_row = H,
                         .add = at.kept + first * H,
                         .add_row = H});
      });
    }
    if (b.first_gradient != nullptr) std::copy_n(g, (end - begin) * H, b.first_gradient + begin * H);
  });

  if (b.grids != nullptr) grids_of_units(d, b, kernels, at.place, at.clamped, at.grid_sums, pool);

  // What rows of steps within their lengths hold, in order.
  const auto pack_rows = [&](int64_t columns, const auto& row_of) {
    in_parts(pool, pieces(columns, kernels.panel), [&](int, int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t j = panel * kernels.panel, count = std::min(kernels.panel, columns - j);
        float* to = at.packed + panel * valid * kernels.panel;
        for (int64_t row = 0; row < d.rows(); ++row) {
          if (at.place[row] < 0) continue;
          std::copy_n(row_of(row) + j, count, to);
          std::fill(to + count, to + kernels.panel, 0.0f);
          to += kernels.panel;
        }
      }
    });
  };
  const auto weight_gradients = [&](const float* g, int64_t columns, float* out) {
    in_parts(pool, 3 * H, [&](int, int64_t begin, int64_t end) {
      kernels.product({.a = g + begin,
                       .a_row = 1,
                       .a_term = 3 * H,
                       .b = at.packed,
                       .rows = end - begin,
                       .terms = valid,
                       .columns = columns,
                       .out = out + begin * columns,
                       .out_row = columns,
                       .add = nullptr,
                       .add_row = 0});
    });
  };
  pack_rows(C, [&](int64_t row) { return d.x + row * C; });
  weight_gradients(at.gx, C, b.gradients.W.data());
  pack_rows(H, before);
  weight_gradients(at.gh, H, b.gradients.R.data());
  kernels.sum_rows(at.gx, valid, 3 * H, b.gradients.bw.data());
  kernels.sum_rows(at.gh, valid, 3 * H, b.gradients.br.data());

  if (b.dx == nullptr) return;
  pack(kernels, 3 * H, C, at.packed, pool, as_it_is(d.weights.W.data(), C));
  in_parts(pool, d.rows(), [&](int, int64_t begin, int64_t end) {
    const auto is_in = [&](int64_t row) { return at.place[row] >= 0; };
    for_runs(begin, end, is_in, [&](int64_t first, int64_t count) {
      kernels.product({.a = at.gx + at.place[first] * 3 * H,
                       .a_row = 3 * H,
                       .a_term = 1,
                       .b = at.packed,
                       .rows = count,
                       .terms = 3 * H,
                       .columns = C,
                       .out = b.dx + first * C,
                       .out_row = C,
                       .add = b.dx_add == nullptr ? nullptr : b.dx_add + first * C,
                       .add_row = C});
    });
    for_runs(
        begin, end, [&](int64_t row) { return !is_in(row); },
        [&](int64_t first, int64_t count) { std::fill_n(b.dx + first * C, count * C, 0.0f); });
  });
}

}  // namespace isobit
