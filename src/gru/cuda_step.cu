// SPDX-License-Identifier: Apache-2.0
// The host's side of the kernel of one launch a step: which layers it runs, packing, launches.
#include "gru/cuda_step.cuh"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/cuda_launch.h"
#include "core/cuda_status.h"
#include "gru/cuda_gru.h"
#include "gru/proof.h"
#include "linear/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kMaxBatch = INT32_MAX / 512;       // rows are counted in 32 bits
constexpr int64_t kChunkBytes = int64_t{128} << 20;  // of x as planes
constexpr int64_t kAlignment = 256;
constexpr int32_t kMaxTableBits = 16;
constexpr int64_t kBlocksPerProcessor = 2;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

/// Bytes of a padded row of x or h.
int32_t plane_bytes(const StepMatrix& matrix) { return matrix.pieces * kStepDepth; }
int32_t row_bytes(const StepMatrix& matrix) { return matrix.planes * plane_bytes(matrix); }

/// Warps share the pieces of W and R so that the largest share is as small as can be.
void cut(StepLayer& layer) {
  layer.warps = std::clamp(layer.W.pieces + layer.R.pieces, 2, kStepWarps);
  const auto share = [&](int32_t x_warps) {
    const int32_t h_warps = layer.warps - x_warps;
    return std::max((layer.W.pieces + x_warps - 1) / x_warps, (layer.R.pieces + h_warps - 1) / h_warps);
  };
  layer.x_warps = 1;
  for (int32_t x_warps = 2; x_warps < layer.warps; ++x_warps)
    if (share(x_warps) < share(layer.x_warps)) layer.x_warps = x_warps;
}

/// [group][piece][gate][lane][16 columns]: lane 4g + q has columns 16q to 16q + 15 of the piece in the row of unit g.
void pack_fragments(const CodeMatrix& weights, int64_t hidden, int64_t groups, const Grid& activation,
                    StepMatrix& matrix, std::vector<uint8_t>& fragments) {
  matrix.size = static_cast<int32_t>(weights.columns());
  matrix.pieces = static_cast<int32_t>((weights.columns() + kStepDepth - 1) / kStepDepth);
  matrix.planes = static_cast<int32_t>(size_in_bytes(activation.dtype()));
  matrix.flip = static_cast<uint32_t>(storage_offset(activation.dtype()));
  fragments.reserve(static_cast<size_t>(groups * matrix.pieces) * 3 * 512);
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t piece = 0; piece < matrix.pieces; ++piece)
      for (int64_t gate = 0; gate < 3; ++gate)
        for (int64_t lane = 0; lane < 32; ++lane)
          for (int64_t i = 0; i < 16; ++i) {
            const int64_t unit = group * kStepUnits + lane / 4;
            const int64_t k = piece * kStepDepth + lane % 4 * 16 + i;
            const bool exists = unit < hidden && k < weights.columns();
            fragments.push_back(exists ? static_cast<uint8_t>(weights.at(gate * hidden + unit, k)) : uint8_t{0});
          }
}

template <typename Lanes>
void pack_rows(const GruLayerParameters& p, StepPack& pack) {
  using Row = typename Lanes::Row;
  const int64_t groups = pack.layer.groups;
  std::vector<Row> rows(static_cast<size_t>(groups) * 6 * kStepUnits, Lanes::row(0, RescaleParameters{}));
  for (const bool of_h : {false, true})
    for (int64_t gate = 0; gate < 3; ++gate)
      for (int64_t unit = 0; unit < p.hidden_size; ++unit) {
        const int64_t row = gate * p.hidden_size + unit;
        const int64_t to = ((unit / kStepUnits * 2 + (of_h ? 1 : 0)) * 3 + gate) * kStepUnits + unit % kStepUnits;
        rows[static_cast<size_t>(to)] =
            Lanes::row(start_of(p, of_h, row), (of_h ? p.acc_to_hh : p.acc_to_ih)[static_cast<size_t>(row)]);
      }
  pack.rows.resize(rows.size() * sizeof(Row));
  std::memcpy(pack.rows.data(), rows.data(), pack.rows.size());
}

template <typename Real>
void pack_lanes(const GruLayerParameters& p, StepGates<Real>& c, std::vector<float>& tables) {
  pack_gates(p, c.cell, tables);
  c.ih_low = static_cast<Real>(p.grids[kIh].min() - p.grids[kIh].zero_point);
  c.ih_high = static_cast<Real>(p.grids[kIh].max() - p.grids[kIh].zero_point);
  for (size_t gate = 0; gate < 3; ++gate) c.ih_to_gate[gate] = ratio_of<Real>(p.ih_to_gate[gate]);
}

StepLanes lanes_of(const GruLayerParameters& p, const GruProof& proof) {
  const bool small_tables = std::all_of(p.tables.begin(), p.tables.end(), [](const ActivationTable& table) {
    return table.input.bits <= kMaxTableBits && table.output.bits <= kMaxTableBits;
  });
  if (p.rounding != Rounding::kNearestEven || !small_tables) return StepLanes::kS64;
  const bool bytes = size_in_bytes(p.grids[kX].dtype()) == 1 && size_in_bytes(p.grids[kH].dtype()) == 1;
  if (proof.gates_f32 && proof.acc_x_s32 && proof.acc_h_s32 && bytes) return StepLanes::kF32;
  return proof.gates_f64 && float_holds_n(p) ? StepLanes::kF64 : StepLanes::kS64;
}

/// Steps whose x is in memory as planes at once.
int64_t chunk_steps(const StepLayer& layer, int64_t batch, int64_t steps) {
  return std::clamp<int64_t>(kChunkBytes / (batch * row_bytes(layer.W)), 1, steps);
}

/// On devices that can, the grid begins while the one before it ends: see let_next_grid_start.
template <typename Args>
Status launch_early(void (*kernel)(Args), const char* name, dim3 grid, int32_t threads, const Args& args,
                    const DeviceLimits& limits, cudaStream_t stream) {
  cudaLaunchAttribute early = early_start();
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = limits.major >= 9 ? 1 : 0;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, args), name);
}

template <typename Lanes, int kPlanes, int kHalves>
Status run_steps_of(const typename Lanes::Constants& gates, const DeviceLayer& layer, const DeviceRun& run,
                    const DeviceLimits& limits, cudaStream_t stream) {
  const StepLayer& p = layer.step;
  const int64_t chunk = chunk_steps(p, run.batch, run.steps);
  uint8_t* const h[2] = {reinterpret_cast<uint8_t*>(run.scratch),
                         reinterpret_cast<uint8_t*>(run.scratch) + aligned(run.batch * row_bytes(p.R))};
  uint8_t* const x = h[1] + aligned(run.batch * row_bytes(p.R));
  const auto batch = static_cast<int32_t>(run.batch);

  PrepareArgs prepare{};
  prepare.batch = static_cast<uint32_t>(batch);
  CodeRows& x_rows = prepare.sets[0];
  x_rows = {nullptr, run.x_strides, 0, p.W.size, p.W.planes, p.W.flip, plane_bytes(p.W), x};
  for (int i = 0; i < 2; ++i)
    prepare.sets[1 + i] = {run.state,  {0, p.R.size}, prepare.batch,    p.R.size,
                           p.R.planes, p.R.flip,      plane_bytes(p.R), h[i]};

  StepArgs<Lanes> a{};
  a.gates = gates;
  a.sides[0] = {p.W.fragments, nullptr, row_bytes(p.W), plane_bytes(p.W), p.W.planes, p.W.pieces};
  a.sides[1] = {p.R.fragments, nullptr, row_bytes(p.R), plane_bytes(p.R), p.R.planes, p.R.pieces};
  a.rows = p.rows;
  a.tables = p.tables;
  a.table_entries = p.table_entries;
  a.x_warps = p.x_warps;
  a.batch = batch;
  a.hidden = p.R.size;
  a.y_sequence = run.y_strides.sequence;
  a.flip = p.R.flip;
  a.h_zero = p.h_zero;
  a.lengths = run.lengths;
  a.mask_width = run.mask_width;
  constexpr int64_t kSequences = kStepSequences / 2 * kHalves;
  const int64_t tiles = (run.batch + kSequences - 1) / kSequences;
  const dim3 grid(static_cast<unsigned>(p.groups), static_cast<unsigned>(std::clamp<int64_t>(
                                                       kBlocksPerProcessor * limits.processors / p.groups, 1, tiles)));

  const int32_t words = std::max(plane_bytes(p.W), plane_bytes(p.R)) / 4;
  for (int64_t done = 0; done < run.steps; done += chunk) {
    const int64_t steps = std::min(chunk, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - steps : done;
    x_rows.from = static_cast<const uint8_t*>(run.x) + first * run.x_strides.step * p.W.planes;
    x_rows.rows = static_cast<uint32_t>(steps * run.batch);
    if (done > 0) prepare.sets[1].rows = prepare.sets[2].rows = 0;
    const int64_t rows = steps * run.batch + prepare.sets[1].rows + prepare.sets[2].rows;
    const dim3 prepare_grid(static_cast<unsigned>((words + kPrepareThreads - 1) / kPrepareThreads),
                            static_cast<unsigned>(std::min<int64_t>(rows, int64_t{16} * limits.processors)));
    ISOBIT_RETURN_IF_ERROR(
        launch_early(step_prepare, "kernel step_prepare", prepare_grid, kPrepareThreads, prepare, limits, stream));
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t s = done + i;
      const int64_t t = run.reverse ? run.steps - 1 - s : s;
      a.sides[0].codes = x + (t - first) * run.batch * row_bytes(p.W);
      a.sides[1].codes = h[s % 2];
      a.next = h[(s + 1) % 2];
      a.state = s + 1 == run.steps ? run.state : nullptr;
      a.y = static_cast<uint8_t*>(run.y) + t * run.y_strides.step * p.R.planes;
      a.t = static_cast<int32_t>(t);
      a.mask = run.mask == nullptr ? nullptr : run.mask + t * run.batch * run.mask_width;
      ISOBIT_RETURN_IF_ERROR(
          launch_early(gru_step<Lanes, kPlanes, kHalves>, "kernel gru_step", grid, 32 * p.warps, a, limits, stream));
    }
  }
  return {};
}

template <typename Lanes, int kPlanes>
Status run_steps(const typename Lanes::Constants& gates, const DeviceLayer& layer, const DeviceRun& run,
                 const DeviceLimits& limits, cudaStream_t stream) {
  return run.batch <= kStepSequences / 2 ? run_steps_of<Lanes, kPlanes, 1>(gates, layer, run, limits, stream)
                                         : run_steps_of<Lanes, kPlanes, 2>(gates, layer, run, limits, stream);
}

}  // namespace

Result<StepPack> pack_step(const GruLayerParameters& p) {
  for (const GruTensor tensor : {kX, kH})
    if (size_in_bytes(p.grids[tensor].dtype()) > 2)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has " + std::to_string(p.grids[tensor].bits) +
                         " bits, must have at most 16");
  for (const GruTensor tensor : {kW, kR}) {
    if (size_in_bytes(p.grids[tensor].dtype()) != 1)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has " + std::to_string(p.grids[tensor].bits) +
                         " bits, must have at most 8");
    if (!p.grids[tensor].is_signed && p.grids[tensor].bits == 8)
      return unsupported(std::string(kGruTensorNames[tensor]) + " has unsigned codes above 127");
  }
  for (const CodeMatrix* weights : {&p.W, &p.R})
    if (weights->columns() > kMaxLinearK)  // a plane's sum would not fit 32 bits
      return unsupported("a matrix has " + std::to_string(weights->columns()) + " columns, must have at most " +
                         std::to_string(kMaxLinearK));
  ISOBIT_ASSIGN_OR_RETURN(const GruProof proof, prove_no_overflow(p, "layer"));
  StepPack pack;
  StepLayer& layer = pack.layer;
  layer.groups = static_cast<int32_t>((p.hidden_size + kStepUnits - 1) / kStepUnits);
  layer.h_zero = static_cast<uint32_t>(p.grids[kH].zero_point + storage_offset(p.grids[kH].dtype()));
  layer.lanes = lanes_of(p, proof);
  pack_fragments(p.W, p.hidden_size, layer.groups, p.grids[kX], layer.W, pack.W);
  pack_fragments(p.R, p.hidden_size, layer.groups, p.grids[kH], layer.R, pack.R);
  cut(layer);
  switch (layer.lanes) {
    case StepLanes::kF32:
      pack_rows<F32Lanes>(p, pack);
      pack_lanes(p, layer.f32, pack.tables);
      break;
    case StepLanes::kF64:
      pack_rows<F64Lanes>(p, pack);
      pack_lanes(p, layer.f64, pack.tables);
      break;
    case StepLanes::kS64: pack_rows<S64Lanes>(p, pack); break;
  }
  pack.tables.resize((pack.tables.size() + 3) / 4 * 4);  // copied in pieces of 16 bytes
  layer.table_entries = static_cast<int32_t>(pack.tables.size());
  return pack;
}

Status step_supports(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, const DeviceLimits&) {
  for (const DeviceLayer& layer : layers)
    if (!layer.step.supported) return unsupported(layer.step_refusal);
  if (batch > kMaxBatch)
    return unsupported("batch is " + std::to_string(batch) + ", must be at most " + std::to_string(kMaxBatch));
  if (steps > INT32_MAX)
    return unsupported("steps is " + std::to_string(steps) + ", must be at most " + std::to_string(INT32_MAX));
  return {};
}

int64_t step_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps,
                           const DeviceLimits& limits) {
  // Smaller runs are supported, too.
  batch = std::min(batch, kMaxBatch);
  steps = std::min<int64_t>(steps, INT32_MAX);
  if (!step_supports(layers, batch, steps, limits).ok()) return 0;
  int64_t bytes = 0;
  for (const DeviceLayer& layer : layers) {
    const int64_t one = batch * row_bytes(layer.step.W);
    // A smaller batch may run more steps in a chunk: the limit itself, where it can be reached.
    const int64_t x = steps <= kChunkBytes / one ? steps * one : std::max(kChunkBytes, one);
    bytes = std::max(bytes, aligned(x) + 2 * aligned(batch * row_bytes(layer.step.R)));
  }
  return bytes;
}

Status step_launch(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits& limits, cudaStream_t stream) {
  const StepLayer& p = layer.step;
  const bool bytes = p.W.planes == 1 && p.R.planes == 1;
  const S64Lanes::Constants reference{layer.cell, storage_offset(layer.h_dtype)};
  switch (p.lanes) {
    case StepLanes::kF32: return run_steps<F32Lanes, 1>(p.f32, layer, run, limits, stream);
    case StepLanes::kF64:
      return bytes ? run_steps<F64Lanes, 1>(p.f64, layer, run, limits, stream)
                   : run_steps<F64Lanes, 2>(p.f64, layer, run, limits, stream);
    case StepLanes::kS64: break;
  }
  return bytes ? run_steps<S64Lanes, 1>(reference, layer, run, limits, stream)
               : run_steps<S64Lanes, 2>(reference, layer, run, limits, stream);
}

/// Few microseconds of work: two streams cost more than they bring.
bool step_beside(const DeviceLayer&) { return false; }

}  // namespace isobit::cuda
