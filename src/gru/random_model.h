// SPDX-License-Identifier: Apache-2.0
// Random integer GRUs and runs of them, for what compares kernels with the reference. Without any floating-point
// forward, so that the same seed gives the same models everywhere: the fingerprint depends on every line.
#ifndef ISOBIT_GRU_RANDOM_MODEL_H_
#define ISOBIT_GRU_RANDOM_MODEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "gru/rescale.h"
#include "isobit/gru.h"

namespace isobit {

/// Widths and kinds of one random model.
struct RandomShape {
  int64_t input = 1;
  int64_t hidden = 1;
  int32_t layers = 1;
  int32_t directions = 1;
  int32_t x_bits = 8, h_bits = 8, weight_bits = 8, linear_bits = 8, gate_in_bits = 8, gate_out_bits = 8;
  ScaleKind kind = ScaleKind::kPow2;
  Rounding rounding = Rounding::kNearestEven;
};

inline RandomShape random_shape(Random& random) {
  RandomShape s;
  s.input = random.between(1, random.one_in(3) ? 150 : 40);
  s.hidden = random.between(1, random.one_in(3) ? 150 : 40);
  s.layers = random.one_in(5) ? 2 : 1;
  s.directions = random.one_in(4) ? 2 : 1;
  const auto width = [&](int32_t wide_one_in) {
    return static_cast<int32_t>(random.one_in(wide_one_in) ? random.between(9, 16)
                                : random.one_in(3)         ? random.between(2, 8)
                                                           : 8);
  };
  s.x_bits = width(4);
  s.h_bits = width(3);
  s.weight_bits = width(6);
  s.linear_bits = random.one_in(4) ? static_cast<int32_t>(random.between(17, 24)) : width(2);
  s.gate_in_bits = static_cast<int32_t>(random.one_in(4) ? random.between(9, 11) : random.between(4, 8));
  s.gate_out_bits = width(3);
  s.kind = random.one_in(3) ? ScaleKind::kReal : ScaleKind::kPow2;
  s.rounding = kAllRoundings[random.between(0, 3)];
  return s;
}

/// A grid that spans about [-2^range_log2, 2^range_log2], with a random zero point.
inline Grid random_grid(Random& random, const RandomShape& s, int32_t bits, int range_log2,
                        bool allow_unsigned = true) {
  Grid grid;
  grid.bits = bits;
  grid.is_signed = !allow_unsigned || !random.one_in(3);
  grid.kind = s.kind;
  const int shift = std::max(bits - 1 - range_log2, -2);
  grid.shift = s.kind == ScaleKind::kPow2 ? shift : 0;
  // 24-bit fractions are exact in float32.
  if (s.kind == ScaleKind::kReal)
    grid.real_scale = static_cast<float>(random.between(1 << 23, (1 << 24) - 1)) *
                      Grid{1, true, ScaleKind::kPow2, shift + 24}.scale();
  const int64_t middle = grid.is_signed ? 0 : (grid.max() + 1) / 2;
  const int64_t spread = (grid.max() - grid.min()) / 4;
  grid.zero_point = std::clamp(middle + random.between(-spread, spread), grid.min(), grid.max());
  return grid;
}

inline CodeMatrix random_codes(Random& random, int64_t rows, int64_t columns, const Grid& grid) {
  CodeMatrix codes(grid.dtype(), rows, columns);
  const bool extreme = random.one_in(8);  // every code at an end of the grid
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      codes.set(r, c, extreme ? (random.one_in(2) ? grid.min() : grid.max()) : random.between(grid.min(), grid.max()));
  return codes;
}

inline std::vector<Grid> random_row_grids(Random& random, const RandomShape& s, int64_t rows, int32_t bits,
                                          int range_log2) {
  std::vector<Grid> grids;
  for (int64_t r = 0; r < rows; ++r) {
    Grid grid = random_grid(random, s, bits, range_log2 + static_cast<int>(random.between(-1, 1)), false);
    grid.zero_point = 0;
    grids.push_back(grid);
  }
  return grids;
}

inline Result<GruModel> random_model(Random& random, const RandomShape& s) {
  GruModelParameters model;
  model.directions = s.directions;
  Grid x = random_grid(random, s, s.x_bits, 2);
  for (int32_t l = 0; l < s.layers; ++l) {
    const Grid h = random_grid(random, s, s.h_bits, 0);
    for (int32_t d = 0; d < s.directions; ++d) {
      GruLayerParameters p;
      p.input_size = l == 0 ? s.input : s.hidden * s.directions;
      p.hidden_size = s.hidden;
      p.rounding = s.rounding;
      p.grids[kX] = x;
      p.grids[kH] = h;
      for (const GruTensor tensor : {kIh, kHh}) p.grids[tensor] = random_grid(random, s, s.linear_bits, 3);
      for (const GruTensor tensor : {kUIn, kRIn, kNIn}) p.grids[tensor] = random_grid(random, s, s.gate_in_bits, 3);
      for (const GruTensor tensor : {kU, kRGate, kN}) {
        // [0, 1] unsigned, or [-1, 1] signed with zero point 0; u has a code of at least one step for 1.
        Grid& grid = p.grids[tensor];
        grid = random_grid(random, s, s.gate_out_bits, 0, false);
        grid.is_signed = tensor == kN;
        grid.zero_point = 0;
        if (grid.kind == ScaleKind::kPow2) grid.shift = tensor == kN ? grid.bits - 1 : grid.bits;
        if (grid.kind == ScaleKind::kReal && tensor != kN) grid.real_scale /= 2;
      }
      const int64_t rows = 3 * s.hidden;
      const auto log2_root = [](int64_t k) {  // weights of about 1 / sqrt(k)
        int log2 = 0;
        while ((int64_t{4} << (2 * log2)) <= k) ++log2;
        return log2;
      };
      p.W_grid = random_row_grids(random, s, rows, s.weight_bits, -log2_root(p.input_size));
      p.R_grid = random_row_grids(random, s, rows, s.weight_bits, -log2_root(s.hidden));
      p.bw_grid = random_row_grids(random, s, rows, 8, 0);
      p.br_grid = random_row_grids(random, s, rows, 8, 0);
      const auto shared = [&](int32_t bits) { return Grid{bits, true, s.kind, 0, 1.0f, 0}; };
      p.grids[kW] = p.grids[kR] = shared(s.weight_bits);
      p.grids[kBw] = p.grids[kBr] = shared(8);
      p.W = random_codes(random, rows, p.input_size, p.grids[kW]);
      p.R = random_codes(random, rows, s.hidden, p.grids[kR]);
      p.bw = random_codes(random, rows, 1, p.grids[kBw]);
      p.br = random_codes(random, rows, 1, p.grids[kBr]);
      for (size_t gate = 0; gate < 3; ++gate) {
        TableOptions options = default_table_options(s.gate_in_bits);
        if (random.one_in(6)) options = {TableKind::kSegments, 8};
        ISOBIT_ASSIGN_OR_RETURN(p.tables[gate],
                                fit_table(gate == 2 ? Activation::kTanh : Activation::kSigmoid, p.grids[kUIn + gate],
                                          p.grids[kU + gate], options, s.rounding));
      }
      ISOBIT_RETURN_IF_ERROR(derive_rescales(p, "random layer"));
      model.layers.push_back(std::move(p));
    }
    x = h;
  }
  return GruModel::create(std::move(model));
}

/// One random run: inputs, lengths, mask and chunks.
struct RandomRun {
  int64_t steps = 0;
  int64_t batch = 0;
  std::vector<std::byte> x;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
  std::vector<int64_t> chunks;
  GruState start;
};

inline std::vector<std::byte> random_tensor(Random& random, int64_t count, const Grid& grid) {
  std::vector<std::byte> codes(static_cast<size_t>(count) * size_in_bytes(grid.dtype()));
  for (int64_t i = 0; i < count; ++i) store_code(codes.data(), grid.dtype(), i, random.between(grid.min(), grid.max()));
  return codes;
}

/// Values around codes of the grid, ties among them, and some that are far outside.
inline std::vector<float> random_floats(Random& random, const Grid& grid, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) {
    const auto code = static_cast<float>(random.between(grid.min(), grid.max()) - grid.zero_point);
    value = (code + static_cast<float>(random.between(-4, 4)) / 8.0f) * grid.scale();
    if (!random.one_in(8)) continue;
    const float odd[] = {std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity(),
                         3e38f,
                         -3e38f,
                         1e-40f,
                         -0.0f,
                         grid.scale() / 2,
                         -1.5f * grid.scale(),
                         grid.scale() * 0x1p33f};
    value = odd[random.between(0, 8)];
  }
  return x;
}

/// What a run of steps and batch has besides.
inline void fill_run(Random& random, const GruModel& model, RandomRun& run) {
  run.x = random_tensor(random, run.steps * run.batch * model.input_size(), model.input_grid());
  run.start = model.initial_state(run.batch);
  if (random.one_in(2))
    for (int64_t l = 0; l < run.start.layer_count(); ++l) {
      const std::vector<std::byte> h = random_tensor(random, run.batch * model.hidden_size(),
                                                     model.parameters().layers[static_cast<size_t>(l)].grids[kH]);
      std::copy(h.begin(), h.end(), run.start.layer(l).begin());
    }
  const bool one_way = model.parameters().directions == 1;
  if (random.one_in(3)) {
    for (int64_t b = 0; b < run.batch; ++b) run.lengths.push_back(random.between(0, run.steps));
  } else if (one_way && random.one_in(2)) {
    for (int64_t left = run.steps; left > 0; left -= run.chunks.back()) run.chunks.push_back(random.between(1, left));
  }
  if (model.layer_count() == 1 && run.chunks.empty() && random.one_in(4))
    for (int64_t i = 0; i < run.steps * run.batch * model.output_size(); ++i)
      run.mask.push_back(static_cast<uint8_t>(random.between(0, 1)));
  if (run.chunks.empty()) run.chunks.push_back(run.steps);
}

inline RandomRun random_run(Random& random, const GruModel& model, int64_t outputs) {
  RandomRun run;
  run.batch = random.between(1, 9);
  run.steps = std::clamp<int64_t>(outputs / (run.batch * model.output_size()), 1, 400);
  fill_run(random, model, run);
  return run;
}

struct RunOutput {
  std::vector<std::byte> y;
  GruState state;
};

/// Whole sequences, or the run's chunks.
inline Result<RunOutput> execute(const GruModel& model, const RandomRun& run, CpuPath path, bool chunked) {
  RunOutput out;
  out.state = run.start;
  const auto y_row = run.batch * model.output_size() * static_cast<int64_t>(size_in_bytes(model.output_grid().dtype()));
  const auto x_row = run.batch * model.input_size() * static_cast<int64_t>(size_in_bytes(model.input_grid().dtype()));
  out.y.resize(static_cast<size_t>(run.steps * y_row));
  Workspace workspace = model.workspace(run.batch, run.steps);
  RunOptions options;
  options.path = path;
  options.lengths = run.lengths;
  options.zoneout_mask = run.mask;
  options.whole_sequence = true;
  int64_t first = 0;
  for (const int64_t steps : chunked ? run.chunks : std::vector<int64_t>{run.steps}) {
    ISOBIT_RETURN_IF_ERROR(model.forward_codes(
        std::span(run.x).subspan(static_cast<size_t>(first * x_row), static_cast<size_t>(steps * x_row)),
        std::span(out.y).subspan(static_cast<size_t>(first * y_row), static_cast<size_t>(steps * y_row)), steps,
        out.state, workspace, options));
    first += steps;
  }
  return out;
}

inline std::string describe(const RandomShape& s, const RandomRun& run, uint64_t seed, int64_t index) {
  return "seed " + std::to_string(seed) + " model " + std::to_string(index) + ", C " + std::to_string(s.input) + " H " +
         std::to_string(s.hidden) + " layers " + std::to_string(s.layers) + " directions " +
         std::to_string(s.directions) + " T " + std::to_string(run.steps) + " N " + std::to_string(run.batch) +
         ", bits x " + std::to_string(s.x_bits) + " h " + std::to_string(s.h_bits) + " weights " +
         std::to_string(s.weight_bits) + " linear " + std::to_string(s.linear_bits) + ", " +
         std::string(to_string(s.kind)) + ", " + std::string(to_string(s.rounding));
}

}  // namespace isobit

#endif  // ISOBIT_GRU_RANDOM_MODEL_H_
