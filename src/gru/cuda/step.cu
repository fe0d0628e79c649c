// SPDX-License-Identifier: Apache-2.0
// The host's side of the kernel of one launch a step: which layers it runs, packing, launches.
#include "gru/cuda/step.cuh"
#include "gru/cuda/step_many.cuh"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/cuda/arguments.h"
#include "core/cuda/grid_launch.h"
#include "core/cuda/status.h"
#include "gru/cuda/gru.h"
#include "gru/proof.h"
#include "product/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kMaxBatch = int64_t{65535} * 32;   // blocks of a grid's second dimension, of 32 sequences
constexpr int64_t kChunkBytes = int64_t{128} << 20;  // of copied x
constexpr int32_t kMaxTableBits = 16;
constexpr int64_t kBlocksPerProcessor = 2;

Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

/// Bytes of a row of x or h, and of one that is padded.
int32_t row_bytes(const StepMatrix& matrix) { return matrix.size * matrix.code_bytes; }
int32_t padded_bytes(const StepMatrix& matrix) {
  return (row_bytes(matrix) + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

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
  matrix.code_bytes = static_cast<int32_t>(size_in_bytes(activation.dtype()));
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

/// Rescales are monotonic, so the ends decide.
bool float_holds_ih(const GruLayerParameters& p) {
  const Grid& ih = p.grids[kIh];
  for (const int64_t code : {ih.min(), ih.max()})
    for (const RescaleParameters& ratio : p.ih_to_gate)
      if (std::abs(rescale(ratio, code - ih.zero_point, p.rounding)) > 1 << 24) return false;
  return true;
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

/// Steps whose x is copied at once.
int64_t chunk_steps(const StepLayer& layer, int64_t batch, int64_t steps) {
  return std::clamp<int64_t>(kChunkBytes / (batch * padded_bytes(layer.W)), 1, steps);
}

/// Whether gru_step can read rows as they are: [steps][batch] of them.
bool rows_aligned(const void* codes, const StepMatrix& matrix, const DeviceStrides& strides, int64_t steps,
                  int64_t batch) {
  const auto odd = [](int64_t bytes) { return bytes % kRowAlignment != 0; };
  return !odd(static_cast<int64_t>(reinterpret_cast<uintptr_t>(codes) % kRowAlignment)) && !odd(row_bytes(matrix)) &&
         (steps == 1 || !odd(strides.step * matrix.code_bytes)) &&
         (batch == 1 || !odd(strides.sequence * matrix.code_bytes));
}

StepSide side_of(const StepMatrix& matrix) {
  StepSide side{};
  side.fragments = matrix.fragments;
  side.row_bytes = padded_bytes(matrix);
  side.code_bytes = matrix.code_bytes;
  side.pieces = matrix.pieces;
  side.flip = matrix.flip == 0 ? 0 : 0x80808080u;
  return side;
}

/// A launch of Args. On devices that can, the grid begins while the one before it ends (let_next_grid_start).
template <typename Args>
struct StepLaunch {
  void (*kernel)(Args) = nullptr;
  const char* name = nullptr;
  GridLaunch grid{};
};

unsigned pieces_of(int64_t count, int64_t piece) { return static_cast<unsigned>((count + piece - 1) / piece); }

dim3 grid_of(const StepTile& tile, const StepLayer& layer, int64_t batch) {
  return dim3(pieces_of(kStepUnits * layer.groups, kStepTileUnits * tile.groups),
              pieces_of(batch, kStepTileSequences * tile.row_tiles));
}

/// Of gru_step_many: the smallest tile with which every block has a processor for itself, or the largest one. None
/// where the memory does not suffice, or gru_step is the faster: up to 16 sequences, and further while all of its
/// blocks are on the device at once; of bytes with C to 3 H / 4 up to 8, and further while each block has a processor
/// for itself.
template <typename Lanes, int kPlanes>
StepTile choose_tile(const StepLayer& layer, int64_t batch, const DeviceLimits& limits) {
  StepTile chosen{};
  const bool few_inputs = kPlanes == 1 && 4 * layer.W.size <= 3 * layer.R.size;
  const int64_t room = (few_inputs ? 1 : kBlocksPerProcessor) * limits.processors;
  if (batch <= (few_inputs ? kStepSequences / 2 : kStepSequences) ||
      layer.groups * pieces_of(batch, kStepSequences / 2) <= room)
    return chosen;
  for (const StepTile& tile : {StepTile{1, 1}, StepTile{1, 2}, StepTile{2, 2}, StepTile{2, 4}}) {
    if (tile.row_tiles == 4 && kPlanes == 2) continue;  // registers
    if (step_many_shared<Lanes>(tile, kPlanes, layer.table_entries) > limits.block_shared) continue;
    chosen = tile;
    const dim3 grid = grid_of(tile, layer, batch);
    if (int64_t{grid.x} * grid.y <= limits.processors) break;
  }
  return chosen;
}

StepTile tile_of(const StepLayer& layer, int64_t batch, const DeviceLimits& limits) {
  if (layer.lanes == StepLanes::kS64 || !layer.float_ih) return {};
  if (layer.lanes == StepLanes::kF32) return choose_tile<F32Lanes, 1>(layer, batch, limits);
  return layer.W.code_bytes == 1 && layer.R.code_bytes == 1 ? choose_tile<F64Lanes, 1>(layer, batch, limits)
                                                            : choose_tile<F64Lanes, 2>(layer, batch, limits);
}

template <typename Lanes, int kPlanes>
auto step_many_kernel(const StepTile& tile) {
  if constexpr (kPlanes == 1)
    if (tile.row_tiles == 4) return gru_step_many<Lanes, kPlanes, 2, 4>;
  return tile.groups == 2      ? gru_step_many<Lanes, kPlanes, 2, 2>
         : tile.row_tiles == 2 ? gru_step_many<Lanes, kPlanes, 1, 2>
                               : gru_step_many<Lanes, kPlanes, 1, 1>;
}

template <typename Lanes, int kPlanes>
Result<StepLaunch<StepArgs<Lanes>>> step_launch_of(const StepLayer& layer, int64_t batch, const DeviceLimits& limits) {
  StepLaunch<StepArgs<Lanes>> launch;
  launch.grid.early = limits.major >= 9;
  if constexpr (!std::is_same_v<Lanes, S64Lanes>) {
    const StepTile tile = tile_of(layer, batch, limits);
    if (tile.groups > 0) {
      launch.kernel = step_many_kernel<Lanes, kPlanes>(tile);
      launch.name = "kernel gru_step_many";
      launch.grid.blocks = grid_of(tile, layer, batch);
      launch.grid.threads = kManyStepThreads;
      // So much that a processor has room for one block: blocks of the next grid begin early, where there is room, and
      // would share a few processors while others have none.
      launch.grid.shared = std::max(step_many_shared<Lanes>(tile, kPlanes, layer.table_entries),
                                    std::min(limits.processor_shared / 2, limits.block_shared));
      ISOBIT_RETURN_IF_ERROR(allow_shared(launch.kernel, launch.grid.shared, launch.name));
      return launch;
    }
  }
  // Tiles of 8 sequences where all of their blocks are on the device at once, else of 16.
  const int64_t blocks = kBlocksPerProcessor * limits.processors;
  const int64_t few = kStepSequences / 2;
  const int64_t sequences = batch <= few || layer.groups * pieces_of(batch, few) <= blocks ? few : kStepSequences;
  launch.kernel = sequences == few ? gru_step<Lanes, kPlanes, 1> : gru_step<Lanes, kPlanes, 2>;
  launch.name = "kernel gru_step";
  launch.grid.blocks =
      dim3(static_cast<unsigned>(layer.groups),
           static_cast<unsigned>(std::clamp<int64_t>(blocks / layer.groups, 1, pieces_of(batch, sequences))));
  // A sequence's gates are a warp's: more of them than multiply, where there are so many.
  launch.grid.threads =
      32 * static_cast<int32_t>(std::clamp<int64_t>(std::min(batch, sequences), layer.warps, kStepWarps));
  return launch;
}

template <typename Lanes, int kPlanes>
Status run_steps(const typename Lanes::Constants& gates, const DeviceLayer& layer, const DeviceRun& run,
                 const DeviceLimits& limits, cudaStream_t stream) {
  const StepLayer& p = layer.step;
  const int64_t x_padded = padded_bytes(p.W);
  const int64_t h_padded = padded_bytes(p.R);
  const auto* const x = static_cast<const uint8_t*>(run.x);
  const bool of_floats = run.floats.first != nullptr;
  const bool copies_x = of_floats || !rows_aligned(run.x, p.W, run.x_strides, run.steps, run.batch);
  // Of the first step, which must not read what it writes.
  const bool copies_h =
      !rows_aligned(run.state, p.R, {0, p.R.size}, 1, run.batch) || (run.steps == 1 && run.state == run.next_state);
  const int64_t chunk = copies_x ? chunk_steps(p, run.batch, run.steps) : run.steps;
  uint8_t* const h[2] = {reinterpret_cast<uint8_t*>(run.scratch),
                         reinterpret_cast<uint8_t*>(run.scratch) + aligned_size(run.batch * h_padded)};
  uint8_t* const x_copy = h[1] + aligned_size(run.batch * h_padded);
  const auto batch = static_cast<int32_t>(run.batch);

  PrepareArgs prepare{};
  prepare.batch = static_cast<uint32_t>(batch);
  prepare.floats = run.floats;
  prepare.x_code_bytes = p.W.code_bytes;
  prepare.x_code_mask = p.W.code_bytes == 2 ? 0xffff : 0xff;
  const int64_t x_width = run.x_element_bytes(p.W.code_bytes);
  const int64_t y_width = run.y_element_bytes(p.R.code_bytes);
  prepare.sets[0] = {
      nullptr, {run.x_strides.step * x_width, run.x_strides.sequence * x_width}, 0, row_bytes(p.W), padded_bytes(p.W),
      x_copy};
  for (int i = 0; i < 2; ++i)
    prepare.sets[1 + i] = {static_cast<const uint8_t*>(run.state),
                           {0, row_bytes(p.R)},
                           copies_h && i < run.steps ? prepare.batch : 0,
                           row_bytes(p.R),
                           padded_bytes(p.R),
                           h[i]};

  StepArgs<Lanes> a{};
  a.gates = gates;
  StepSide& of_x = a.sides[0];
  StepSide& of_h = a.sides[1];
  of_x = side_of(p.W);
  of_h = side_of(p.R);
  of_x.sequence_bytes = copies_x ? x_padded : run.x_strides.sequence * p.W.code_bytes;
  a.rows = p.rows;
  a.tables = p.tables;
  a.table_entries = p.table_entries;
  a.warps = p.warps;
  a.x_warps = p.x_warps;
  a.batch = batch;
  a.hidden = p.R.size;
  a.y_sequence = run.y_strides.sequence;
  a.y_scale = run.y_scale;
  a.flip = p.R.flip;
  a.h_zero = p.h_zero;
  a.lengths = run.lengths;
  a.mask_width = run.mask_width;
  ISOBIT_ASSIGN_OR_RETURN(const StepLaunch<StepArgs<Lanes>> launch,
                          (step_launch_of<Lanes, kPlanes>(p, run.batch, limits)));

  for (int64_t done = 0; done < run.steps; done += chunk) {
    const int64_t steps = std::min(chunk, run.steps - done);
    const int64_t first = run.reverse ? run.steps - done - steps : done;
    prepare.sets[0].from = x + first * prepare.sets[0].strides.step;
    prepare.sets[0].rows = copies_x ? static_cast<uint32_t>(steps * run.batch) : 0;
    if (done > 0) prepare.sets[1].rows = prepare.sets[2].rows = 0;
    if (done > 0) prepare.floats.begins = false;
    if (const int64_t rows = int64_t{prepare.sets[0].rows} + prepare.sets[1].rows + prepare.sets[2].rows; rows > 0) {
      const unsigned columns = pieces_of(std::max(x_padded, h_padded), 4 * kPrepareThreads);
      const int64_t most = prepare.floats.begins ? int64_t{kNanPlaces} / columns : int64_t{16} * limits.processors;
      const dim3 blocks(columns, static_cast<unsigned>(std::min(rows, most)));
      ISOBIT_RETURN_IF_ERROR(GridLaunch({blocks, kPrepareThreads, 0, 0, false, limits.major >= 9})
                                 .run("kernel step_prepare", step_prepare, stream, prepare));
    }
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t s = done + i;
      const int64_t t = run.reverse ? run.steps - 1 - s : s;
      of_x.codes = copies_x ? x_copy + (t - first) * run.batch * x_padded : x + t * prepare.sets[0].strides.step;
      const bool callers = s == 0 && !copies_h;
      of_h.codes = callers ? static_cast<const uint8_t*>(run.state) : h[s % 2];
      of_h.sequence_bytes = callers ? row_bytes(p.R) : h_padded;
      const bool last = s + 1 == run.steps;
      a.next = last ? run.next_state : h[(s + 1) % 2];
      a.next_sequence = last ? p.R.size : h_padded / p.R.code_bytes;
      a.y = static_cast<uint8_t*>(run.y) + t * run.y_strides.step * y_width;
      a.t = static_cast<int32_t>(t);
      a.mask = run.mask == nullptr ? nullptr : run.mask + t * run.batch * run.mask_width;
      ISOBIT_RETURN_IF_ERROR(launch.grid.run(launch.name, launch.kernel, stream, a));
    }
  }
  return {};
}

}  // namespace

Result<StepPack> pack_step(const GruLayerParameters& p) {
  ISOBIT_RETURN_IF_ERROR(check_widths(p));
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
  layer.float_ih = float_holds_ih(p);
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

Result<StepTile> step_tile(const GruLayerParameters& p, int64_t batch, const DeviceLimits& limits) {
  ISOBIT_ASSIGN_OR_RETURN(const StepPack pack, pack_step(p));
  return tile_of(pack.layer, batch, limits);
}

bool step_is_taken(std::span<const DeviceLayer>, int64_t, int64_t steps, bool, const DeviceLimits&) {
  return steps > 0;
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
    const int64_t one = batch * padded_bytes(layer.step.W);
    // A smaller batch may run more steps in a chunk: the limit itself, where it can be reached.
    const int64_t x = steps <= kChunkBytes / one ? steps * one : std::max(kChunkBytes, one);
    bytes = std::max(bytes, aligned_size(x) + 2 * aligned_size(batch * padded_bytes(layer.step.R)));
  }
  return bytes;
}

Status step_launch(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits& limits, cudaStream_t stream) {
  const StepLayer& p = layer.step;
  const bool bytes = p.W.code_bytes == 1 && p.R.code_bytes == 1;
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
bool step_beside(const DeviceLayer&, int64_t, int64_t) { return false; }

}  // namespace isobit::cuda
