// SPDX-License-Identifier: Apache-2.0
// Training against the vectors of the oracle (oracle/README.md, training.json, qat.json and learned_grids.json): the
// reference, and the kernels of every path that runs here.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "gru/cpu/layer.h"
#include "gru/training/layer.h"
#include "gru/training/qat.h"
#include "gru/training/reference.h"
#include "isobit/cpu.h"
#include "isobit/gru_qat.h"
#include "testing/oracle.h"

namespace isobit {
namespace {

using testing::Json;
using Floats = std::vector<float>;

/// Numbers of nested lists, in order; `missing` for null.
void flatten(const Json& j, float missing, Floats& out) {
  if (j.is_array()) {
    for (const Json& one : j) flatten(one, missing, out);
  } else {
    out.push_back(j.is_null() ? missing : testing::float_of_bits(j.get<std::string>()));
  }
}
Floats floats_of(const Json& j) {
  Floats out;
  if (!j.is_null()) flatten(j, 0.0f, out);
  return out;
}

/// Of nested lists; null: none.
template <typename T>
std::vector<T> integers_of(const Json& j) {
  if (j.is_null()) return {};
  const std::vector<int64_t> all = testing::flatten(j);
  return {all.begin(), all.end()};
}

void expect_same(const Floats& found, const Floats& wanted, const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(wanted[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(wanted[i]))
        << what << "[" << i << "]: " << found[i] << ", must be " << wanted[i];
  }
}

std::vector<CpuPath> paths() {
  std::vector<CpuPath> found = {CpuPath::kReference};
  for (const CpuPath path : {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512Vnni})
    if (cpu_can_run(path)) found.push_back(path);
  return found;
}

struct LayerCase {
  explicit LayerCase(const Json& j)
      : json(j),
        steps(j["T"].get<int64_t>()),
        batch(j["N"].get<int64_t>()),
        inputs(j["C"].get<int64_t>()),
        hidden(j["H"].get<int64_t>()),
        W(floats_of(j["W"])),
        bw(floats_of(j["bw"])),
        br(floats_of(j["br"])),
        x(floats_of(j["x"])),
        first(floats_of(j["h0"])),
        dy(floats_of(j["dy"])),
        last_gradient(floats_of(j["dh_last"])) {
    const Floats repeated = floats_of(j.contains("R") ? j["R"] : j["R_repeated"]);
    for (int64_t i = 0; i < 3 * hidden * hidden; ++i) R.push_back(repeated[static_cast<size_t>(i) % repeated.size()]);
    lengths = integers_of<int64_t>(j["lengths"]);
    mask = integers_of<uint8_t>(j["mask"]);
  }

  void run(CpuPath path) const {
    const TrainingDirection d{.steps = steps,
                              .batch = batch,
                              .inputs = inputs,
                              .hidden = hidden,
                              .reverse = json["reverse"].get<bool>(),
                              .lengths = lengths,
                              .weights = {W, R, bw, br},
                              .x = x.data(),
                              .mask = mask.empty() ? nullptr : mask.data(),
                              .first = first.empty() ? nullptr : first.data(),
                              .y_row = hidden};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto states = static_cast<size_t>(batch * hidden);
    Floats y(dy.size(), nan), last(states, nan), saved(4 * dy.size(), nan);
    Floats dx(x.size(), nan), dW(W.size(), nan), dR(R.size(), nan), dbw(bw.size(), nan), dbr(br.size(), nan);
    Floats first_gradient(states, nan);
    const TrainingForward f{y.data(), last.data(), saved.data()};
    const TrainingBackward b{.y = y.data(),
                             .saved = saved.data(),
                             .passes = nullptr,
                             .dy = dy.data(),
                             .last_gradient = last_gradient.empty() ? nullptr : last_gradient.data(),
                             .first_gradient = first_gradient.data(),
                             .dx = dx.data(),
                             .dx_add = nullptr,
                             .gradients = {dW, dR, dbw, dbr}};
    if (path == CpuPath::kReference) {
      reference_forward(d, f);
      reference_backward(d, b);
    } else {
      const GruTrainingKernels kernels = training_kernels_of(path);
      Workspace scratch(training_scratch_bytes(steps, batch, inputs, hidden, 1));
      train_forward(d, f, kernels, scratch.data(), nullptr);
      train_backward(d, b, kernels, scratch.data(), nullptr);
    }
    const struct {
      const char* name;
      const Floats& found;
    } results[] = {{"y", y},   {"h_last", last}, {"dx", dx},   {"dW", dW},
                   {"dR", dR}, {"dbw", dbw},     {"dbr", dbr}, {"dh0", first_gradient}};
    for (const auto& [name, found] : results)
      if (json.contains(name)) expect_same(found, floats_of(json[name]), name);
    if (json.contains("dR_fnv1a64")) {
      EXPECT_EQ(hex64(fnv1a64(dR)), json["dR_fnv1a64"].get<std::string>());
    }
    const char* const gates[] = {"u", "r", "n", "q"};
    for (size_t gate = 0; gate < std::size(gates); ++gate)
      for (int64_t row = 0; row < steps * batch; ++row) {
        const Json& wanted = json[gates[gate]][static_cast<size_t>(row / batch)][static_cast<size_t>(row % batch)];
        if (wanted.is_null()) continue;
        const auto begin = saved.begin() + (row * 4 + static_cast<int64_t>(gate)) * hidden;
        expect_same(Floats(begin, begin + hidden), floats_of(wanted), gates[gate]);
      }
  }
  static uint64_t fnv1a64(const Floats& values) {
    uint64_t hash = 0xcbf29ce484222325U;
    for (const float value : values)
      for (int byte = 0; byte < 4; ++byte)
        hash = (hash ^ (std::bit_cast<uint32_t>(value) >> (8 * byte) & 0xff)) * 0x100000001b3U;
    return hash;
  }
  static std::string hex64(uint64_t hash) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    return text;
  }

  const Json& json;
  int64_t steps, batch, inputs, hidden;
  Floats W, R, bw, br, x, first, dy, last_gradient;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
};

/// A case of qat.json on a path.
void run_qat(const Json& j, CpuPath path) {
  const GruLayerParameters layer = testing::layer_of(j["layers"][0][0], testing::rounding_of(j["mode"]));
  const auto codes_of = [](const Json& codes) { return testing::flatten(codes); };
  const int64_t T = j["T"], N = j["N"], C = layer.input_size, H = layer.hidden_size;
  const std::vector<int64_t> x_codes = codes_of(j["x"]);
  const std::vector<int64_t> first_codes = integers_of<int64_t>(j["h0"]);
  const std::vector<int64_t> lengths = integers_of<int64_t>(j["lengths"]);
  const std::vector<uint8_t> mask = integers_of<uint8_t>(j["mask"]);
  const uint8_t* const mask_data = mask.empty() ? nullptr : mask.data();
  const bool reverse = j["reverse"];

  std::vector<int64_t> y_codes(static_cast<size_t>(T * N * H)), last(static_cast<size_t>(N * H));
  Floats saved(4 * y_codes.size());
  std::vector<uint16_t> passes(y_codes.size());
  qat_forward({.layer = &layer,
               .steps = T,
               .batch = N,
               .reverse = reverse,
               .lengths = lengths,
               .x = x_codes.data(),
               .mask = mask_data,
               .first = first_codes.empty() ? nullptr : first_codes.data(),
               .y_row = H},
              {y_codes.data(), last.data(), saved.data(), passes.data()}, nullptr);
  EXPECT_EQ(y_codes, codes_of(j["y"]));
  EXPECT_EQ(last, codes_of(j["h_last"]));
  const std::pair<const char*, GruTensor> gates[] = {{"u", kU}, {"r", kRGate}, {"n", kN}, {"hh_n", kHh}};
  for (int64_t row = 0; row < T * N; ++row) {
    const auto of_row = [&](const char* name) -> const Json& {
      return j[name][static_cast<size_t>(row / N)][static_cast<size_t>(row % N)];
    };
    if (of_row("passes").is_null()) continue;
    for (size_t gate = 0; gate < std::size(gates); ++gate) {
      Floats wanted(static_cast<size_t>(H));
      dequantize_codes(layer.grids[gates[gate].second], codes_of(of_row(gates[gate].first)), wanted);
      const auto begin = saved.begin() + (row * 4 + static_cast<int64_t>(gate)) * H;
      expect_same(Floats(begin, begin + H), wanted, gates[gate].first);
    }
    const std::vector<int64_t> wanted = testing::flatten(of_row("passes"));
    for (int64_t k = 0; k < H; ++k)
      ASSERT_EQ(passes[static_cast<size_t>(row * H + k)], wanted[static_cast<size_t>(k)]) << "passes of " << row;
  }

  const Floats W = dequantized_rows(layer.W, layer.W_grid), R = dequantized_rows(layer.R, layer.R_grid);
  Floats x(x_codes.size()), y(y_codes.size()), first(first_codes.size());
  dequantize_codes(layer.grids[kX], x_codes, x);
  dequantize_codes(layer.grids[kH], y_codes, y);
  dequantize_codes(layer.grids[kH], first_codes, first);
  const Floats dy = floats_of(j["dy"]), last_gradient = floats_of(j["dh_last"]), bias(static_cast<size_t>(3 * H));
  Floats dx(x.size()), dW(W.size()), dR(R.size()), dbw(bias.size()), dbr(bias.size()), first_gradient(last.size());
  const TrainingDirection d{.steps = T,
                            .batch = N,
                            .inputs = C,
                            .hidden = H,
                            .reverse = reverse,
                            .lengths = lengths,
                            .weights = {W, R, bias, bias},
                            .x = x.data(),
                            .mask = mask_data,
                            .first = first.empty() ? nullptr : first.data(),
                            .y_row = H};
  const TrainingBackward b{.y = y.data(),
                           .saved = saved.data(),
                           .passes = passes.data(),
                           .dy = dy.data(),
                           .last_gradient = last_gradient.empty() ? nullptr : last_gradient.data(),
                           .first_gradient = first_gradient.data(),
                           .dx = dx.data(),
                           .dx_add = nullptr,
                           .gradients = {dW, dR, dbw, dbr}};
  if (path == CpuPath::kReference) {
    reference_backward(d, b);
  } else {
    Workspace scratch(training_scratch_bytes(T, N, C, H, 1));
    train_backward(d, b, training_kernels_of(path), scratch.data(), nullptr);
  }
  const std::pair<const char*, const Floats*> results[] = {{"dx", &dx},   {"dW", &dW},   {"dR", &dR},
                                                           {"dbw", &dbw}, {"dbr", &dbr}, {"dh0", &first_gradient}};
  for (const auto& [name, found] : results) expect_same(*found, floats_of(j[name]), name);
}

/// A case of learned_grids.json on a path. The reverse direction is that of a model of two, whose forward direction
/// gets no gradient.
struct LearnedGridsCase {
  explicit LearnedGridsCase(const Json& j)
      : json(j),
        steps(j["T"].get<int64_t>()),
        batch(j["N"].get<int64_t>()),
        directions(j["reverse"].get<bool>() ? 2 : 1),
        layer(layer_of(j)),
        hidden(layer.hidden_size),
        lengths(integers_of<int64_t>(j["lengths"])) {}

  static GruLayerParameters layer_of(const Json& j) {
    Json unit = j["layers"][0][0];
    if (unit.contains("R_repeated")) {
      const Json& repeated = unit["R_repeated"];
      const int64_t H = j["H"];
      for (int64_t c = 0; c < 3 * H; ++c) {
        Json row = Json::array();
        for (int64_t k = 0; k < H; ++k) row.push_back(repeated[static_cast<size_t>(c * H + k) % repeated.size()]);
        unit["R"].push_back(row);
      }
    }
    GruLayerParameters p = testing::layer_of(unit, testing::rounding_of(j["mode"]));
    for (ActivationTable& table : p.tables) {  // which have no certificate in the vectors
      const TableErrors errors = table_errors(table).value();
      table.certificate = {errors.max_lsb, errors.worst_code};
    }
    return p;
  }
  /// Values of the direction, [T, N, H], among those of all; of states, [N, H].
  template <typename T>
  std::vector<T> among_all(const std::vector<T>& values, T other) const {
    if (directions == 1 || values.empty()) return values;
    const bool are_states = static_cast<int64_t>(values.size()) == batch * hidden && steps != 1;
    std::vector<T> all;
    if (are_states) {
      all.assign(values.size(), other);
      all.insert(all.end(), values.begin(), values.end());
      return all;
    }
    for (size_t i = 0; i < values.size(); i += static_cast<size_t>(hidden)) {
      all.insert(all.end(), static_cast<size_t>(hidden), other);
      all.insert(all.end(), values.begin() + static_cast<int64_t>(i),
                 values.begin() + static_cast<int64_t>(i) + hidden);
    }
    return all;
  }
  template <typename T>
  std::vector<T> of_direction(const std::vector<T>& all) const {
    std::vector<T> values;
    for (int64_t row = 0; row < steps * batch; ++row) {
      const auto begin = all.begin() + ((row + 1) * directions - 1) * hidden;
      values.insert(values.end(), begin, begin + hidden);
    }
    return values;
  }
  [[nodiscard]] Floats numbers(GruTensor tensor, const Json& codes) const {
    const std::vector<int64_t> flat = testing::flatten(codes);
    Floats values(flat.size());
    dequantize_codes(layer.grids[tensor], flat, values);
    return values;
  }

  void run(CpuPath path) const {
    const Result<GruModel> model = GruModel::create(
        {std::vector(static_cast<size_t>(directions), layer), static_cast<int32_t>(directions), "", ""});
    ASSERT_TRUE(model.ok()) << model.status().message();
    const Floats x = floats_of(json["x"]), first = among_all(floats_of(json["h0"]), 0.0f);
    const Floats dy = among_all(floats_of(json["dy"]), 0.0f),
                 last_gradient = among_all(floats_of(json["dh_last"]), 0.0f);
    const std::vector<uint8_t> mask = among_all(integers_of<uint8_t>(json["mask"]), uint8_t{1});
    const auto states = static_cast<size_t>(directions * batch * hidden);
    Floats y(dy.size()), last(states), dx(x.size()), first_gradient(states);
    const Result<GruQatRun> run =
        GruQatRun::forward(*model, x, steps, batch, y, {.first = first, .last = last},
                           {.path = path, .lengths = lengths, .zoneout_mask = mask}, {.learn_grids = true});
    ASSERT_TRUE(run.ok()) << run.status().message();
    std::vector<Floats> weights;
    std::vector<GruTrainingGradients> into;
    for (int64_t d = 0; d < directions; ++d) {
      for (const int64_t count : {3 * hidden * layer.input_size, 3 * hidden * hidden, 3 * hidden, 3 * hidden})
        weights.emplace_back(count);
    }
    for (size_t i = 0; i < weights.size(); i += 4)
      into.push_back({weights[i], weights[i + 1], weights[i + 2], weights[i + 3]});
    std::vector<GruGridGradients> grids(static_cast<size_t>(directions));
    const Status done =
        run->backward(dy, dx, into, {.last_gradient = last_gradient, .first_gradient = first_gradient}, nullptr, grids);
    ASSERT_TRUE(done.ok()) << done.message();
    const auto own_state = [&](const Floats& all) { return Floats(all.end() - batch * hidden, all.end()); };
    expect_same(of_direction(y), numbers(kH, json["y"]), "y");
    expect_same(own_state(last), numbers(kH, json["h_last"]), "h_last");
    expect_same(dx, floats_of(json["dx"]), "dx");
    if (!json["dh0"].is_null()) expect_same(own_state(first_gradient), floats_of(json["dh0"]), "dh0");
    for (const GruTensor tensor : kGruCalibratedTensors) {
      const std::string name(kGruTensorNames[tensor]);
      const Json& wanted = json["sums"][name];
      const GruGridGradient& sums = grids.back()[tensor];
      const Grid& grid = layer.grids[tensor];
      const std::pair<const char*, float> values[] = {{"inside", sums.inside},
                                                      {"below", sums.below},
                                                      {"above", sums.above},
                                                      {"step", step_gradient(sums, grid)},
                                                      {"log2_step", log2_step_gradient(sums, grid)}};
      for (const auto& [value, found] : values) expect_same({found}, floats_of(wanted[value]), name + " " + value);
    }
    if (!json["sides"].is_null()) check_clamps(path);
  }

  /// Sides and rests of the clamps of units.
  void check_clamps(CpuPath path) const {
    const auto rows = static_cast<size_t>(steps * batch), H = static_cast<size_t>(hidden);
    std::vector<int64_t> x = testing::flatten(json["x_codes"]), first = integers_of<int64_t>(json["h0_codes"]);
    Floats saved(4 * rows * H), rests(kClamps * rows * H);
    std::vector<uint16_t> passes(rows * H), above(rows * H);
    std::vector<int64_t> y(rows * H), last(static_cast<size_t>(batch) * H, layer.grids[kH].zero_point);
    const std::vector<uint8_t> mask = integers_of<uint8_t>(json["mask"]);
    const Result<GruLayer> packed = GruLayer::create(layer, "layer");
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    if (path == CpuPath::kReference || !packed->supports_packed().ok()) {
      qat_forward({.layer = &layer,
                   .steps = steps,
                   .batch = batch,
                   .reverse = directions == 2,
                   .lengths = lengths,
                   .x = x.data(),
                   .mask = mask.empty() ? nullptr : mask.data(),
                   .first = first.empty() ? nullptr : first.data(),
                   .y_row = hidden},
                  {y.data(), last.data(), saved.data(), passes.data(), above.data(), rests.data()}, nullptr);
    } else {
      if (!first.empty()) last = first;
      const auto bytes_of = [](const Grid& grid, const std::vector<int64_t>& codes) {
        std::vector<std::byte> bytes(codes.size() * size_in_bytes(grid.dtype()));
        for (size_t i = 0; i < codes.size(); ++i)
          store_code(bytes.data(), grid.dtype(), static_cast<int64_t>(i), codes[i]);
        return bytes;
      };
      const std::vector<std::byte> x_bytes = bytes_of(layer.grids[kX], x);
      std::vector<std::byte> y_bytes = bytes_of(layer.grids[kH], y), state = bytes_of(layer.grids[kH], last);
      Workspace scratch(packed->scratch_bytes(batch, steps));
      const LayerRecord record{saved.data(), passes.data(), above.data(), rests.data()};
      LayerRun run;
      run.steps = steps;
      run.end = run.batch = batch;
      run.reverse = directions == 2;
      run.x = x_bytes.data();
      run.x_strides = {batch * layer.input_size, layer.input_size};
      run.y = y_bytes.data();
      run.y_strides = {batch * hidden, hidden};
      run.h = state.data();
      run.lengths = lengths;
      run.mask = mask.empty() ? nullptr : mask.data();
      run.mask_width = hidden;
      run.record = &record;
      run.scratch = scratch.data();
      packed->run(path, run);
    }
    for (size_t row = 0; row < rows; ++row) {
      const auto of_row = [&](const char* name) -> const Json& {
        return json[name][row / static_cast<size_t>(batch)][row % static_cast<size_t>(batch)];
      };
      if (of_row("sides").is_null()) continue;
      for (size_t unit = 0; unit < H; ++unit)
        for (size_t bit = 0; bit < kClamps; ++bit) {
          const bool passed = (passes[row * H + unit] >> bit & 1) != 0,
                     is_above = (above[row * H + unit] >> bit & 1) != 0;
          ASSERT_EQ(passed ? 0 : is_above ? 1 : -1, of_row("sides")[unit][bit].get<int>()) << row << " " << bit;
          expect_same({rests[(row * kClamps + bit) * H + unit]}, floats_of(of_row("rests")[unit][bit]),
                      "rest " + std::to_string(bit) + " of row " + std::to_string(row));
        }
    }
  }

  const Json& json;
  int64_t steps, batch, directions;
  GruLayerParameters layer;
  int64_t hidden;
  std::vector<int64_t> lengths;
};

TEST(GruTrainingOracle, EveryVectorOfLearnedGrids) {
  int cases = 0;
  const Json all = testing::oracle_cases("learned_grids.json");
  for (const Json& j : all)
    for (const CpuPath path : paths()) {
      SCOPED_TRACE(j["name"].get<std::string>() + ", " + std::string(to_string(path)));
      LearnedGridsCase(j).run(path);
      ++cases;
    }
  EXPECT_GE(cases, 18 * 2);
}

TEST(GruTrainingOracle, EveryVectorOfQuantisationAwareTraining) {
  int cases = 0;
  const Json all = testing::oracle_cases("qat.json");
  for (const Json& j : all)
    for (const CpuPath path : paths()) {
      SCOPED_TRACE(j["name"].get<std::string>() + ", " + std::string(to_string(path)));
      run_qat(j, path);
      ++cases;
    }
  EXPECT_GE(cases, 11 * 2);
}

TEST(GruTrainingOracle, EveryVector) {
  int layers = 0, functions = 0;
  const Json cases = testing::oracle_cases("training.json");
  for (const Json& j : cases) {
    for (const CpuPath path : paths()) {
      SCOPED_TRACE(j.value("name", "functions") + ", " + std::string(to_string(path)));
      if (j["op"] == "layer") {
        LayerCase(j).run(path);
        ++layers;
        continue;
      }
      Floats x = floats_of(j["x"]), e(x.size()), sigmoid(x.size()), tanh(x.size());
      if (path == CpuPath::kReference) {
        for (size_t i = 0; i < x.size(); ++i) {
          e[i] = reference_e(-std::abs(x[i])), sigmoid[i] = reference_sigmoid(x[i]), tanh[i] = reference_tanh(x[i]);
        }
      } else {
        training_kernels_of(path).functions(x.data(), static_cast<int64_t>(x.size()), e.data(), sigmoid.data(),
                                            tanh.data());
      }
      for (size_t i = 0; i < x.size(); ++i)
        if (!j["E"][i].is_null()) expect_same({e[i]}, floats_of(j["E"][i]), "E of " + std::to_string(x[i]));
      expect_same(sigmoid, floats_of(j["sigmoid"]), "sigmoid");
      expect_same(tanh, floats_of(j["tanh"]), "tanh");
      ++functions;
    }
  }
  EXPECT_GE(layers, 18 * 2);
  EXPECT_GE(functions, 2);
}

}  // namespace
}  // namespace isobit
