// SPDX-License-Identifier: Apache-2.0
// What a layer needs to run on the persistent kernels (cluster.cuh, cluster_few.cuh, cluster_many.cuh, grid_few.cuh,
// grid_many.cuh, portable.cuh) and on gru_products (products.cuh), in device memory, and the host side of each.
#ifndef ISOBIT_GRU_CUDA_PERSISTENT_H_
#define ISOBIT_GRU_CUDA_PERSISTENT_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/ratio.h"
#include "gru/cuda/gates.cuh"
#include "gru/cuda/plan.h"
#include "isobit/gru.h"
#include "isobit/status.h"
#include "product/cuda/product.h"

namespace isobit::cuda {

inline constexpr int64_t kMaxClusterHidden = 1024;
inline constexpr int64_t kMaxGridHidden = 2048;

/// The ways to run a layer, but for kProducts after the product W x. kChosen: the fastest of those that keep R in
/// registers, all but kProducts.
enum class PersistentForm : size_t { kChosen, kCluster, kClusterMany, kGrid, kPortable, kProducts };
inline constexpr size_t kPersistentForms = 6;

/// Of the rows of R. Pointers are device memory.
template <typename Ratio>
struct PersistentRows {
  const SumOf<Ratio>* start = nullptr;  // of hh's accumulators
  const Ratio* ratio = nullptr;         // accumulator -> hh
};

/// One way to cut a layer for gru_cluster or gru_cluster_few.
struct ClusterCut {
  int32_t cluster = 0;         // blocks of a team
  int32_t unit_blocks = 0;     // groups of 16 units of a block
  int32_t k_tiles = 0;         // of a warp
  int32_t k_splits = 0;        // warps that share a group
  int32_t room = 0;            // teams that are on the device at once
  int32_t sequence_tiles = 0;  // as many as fit shared memory
  int32_t most = 0;            // sequences of a team, while no other cut is faster
  int32_t few = 0;             // sequences of a team, while gru_cluster_few is faster
};
inline constexpr int32_t kMaxCuts = 3;

/// How a layer is cut for gru_cluster_many.
struct ClusterManyCut {
  int32_t cluster = 0;         // blocks of a team
  int32_t room = 0;            // teams that are on the device at once
  int32_t sequence_tiles = 0;  // as many as fit shared memory
};

/// How a layer is cut for gru_grid_many; gru_grid_few needs no more than its groups.
struct GridCut {
  int32_t cluster = 0;               // 0: it does not run
  int32_t slots16 = 0, slots32 = 0;  // turns of 16 and 32 sequences whose state fits shared memory
  int32_t k_tiles = 0;
};

/// How a layer is cut for gru_portable.
struct PortableCut {
  int32_t blocks = 0;       // of a team
  int32_t unit_blocks = 0;  // groups of 16 units of a block
  int32_t warp_tiles = 0;   // k tiles of a warp
  int32_t teams = 0;        // that are on the device at once
};

struct PersistentLayer {
  bool fits[kPersistentForms]{};  // which forms run it
  ClusterCut cut[kMaxCuts]{};     // the first is the fastest for few sequences
  int32_t cuts = 0;
  ClusterManyCut many{};
  GridCut grid_cut{};
  PortableCut portable{};
  int32_t products_room = 0;  // blocks of gru_products that are on the device at once
  int32_t block_shared = 0;   // bytes of shared memory that a block may ask for
  LayerRatios ratios{};
  int32_t k_tiles = 4;                                  // of all columns of R in `fragments`
  int32_t groups = 1;                                   // of 16 units, padded ones included
  int32_t hidden_size = 0, h_planes = 1, x_planes = 1;  // planes: bytes of a code
  // Of each type that there is, one is set.
  std::tuple<GateLanes<float>, GateLanes<double>> gates{};
  std::tuple<PersistentRows<float>, PersistentRows<Fixed>, PersistentRows<WideFixed>, PersistentRows<double>> rows{};
  // Accumulator -> ih -> gate input, in the order of Recurrence::ih.
  std::tuple<DeviceProduct<float>, DeviceProduct<Fixed>, DeviceProduct<double>> W{};
  // Accumulator -> hh, in the same order: what gru_products takes, the image only.
  std::tuple<DeviceProduct<float>, DeviceProduct<Fixed>, DeviceProduct<WideFixed>, DeviceProduct<double>> R{};
  const uint4* fragments = nullptr;       // R: [groups][k_tiles][gate][lane][16 bytes] (pack_fragments)
  const uint4* grid_fragments = nullptr;  // R for gru_grid_many
  const float* tables = nullptr;          // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries = 0;              // of all three
  uint32_t h_flip = 0;                    // the sign bit of signed codes, in all four bytes
  uint8_t x_flip = 0;
};

inline bool fits(const PersistentLayer& layer, PersistentForm form) { return layer.fits[static_cast<size_t>(form)]; }

/// The fastest form of a run that any form can take.
PersistentForm fastest_form(const PersistentLayer& layer, int64_t batch, int64_t steps);

/// What every launch of a recurrence is told: steps [first_step, first_step + steps) of a run.
struct Recurrence {
  /// ih rescaled to the gate inputs, plus 32768: [steps][batch][groups of 16 units][gate][unit].
  const uint16_t* ih;
  int32_t groups;      // of 16 units in ih, padded ones included
  int32_t first_step;  // what lengths and the mask are counted from
  int32_t steps, batch, hidden;
  const float* tables;  // of PersistentLayer
  int32_t table_entries;
  const uint8_t* state;        // [batch][hidden] codes
  uint8_t* next_state;         // after the last step; may be `state`
  uint8_t* y;                  // codes or floats of the first of these steps, at this direction's columns
  int64_t y_step, y_sequence;  // bytes
  int32_t y_unit;              // the same from a unit to the next one
  float y_scale;               // 0: codes; else floats, differences from z_h by this
  uint32_t flip;               // the sign bit of signed codes, of the high bytes, in all four bytes
  const int64_t* lengths;      // [batch], or null
  const uint8_t* mask;         // [all steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
  uint32_t delays;  // 0, or a seed: set_exchange_delays
};

/// Calls body(ratio of R h, planes of h as a constant) with what the layer has.
template <typename Body>
auto with_lanes(const PersistentLayer& layer, Body body) {
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  const bool two = layer.h_planes == 2;
  if (layer.ratios.h == RatioType::kFloat) return body(float(), One());  // never of two planes
  if (layer.ratios.h == RatioType::kDouble) return two ? body(double(), Two()) : body(double(), One());
  return two ? body(WideFixed(), Two()) : body(Fixed(), One());
}

/// The shape of W x.
const ProductShape& product_shape(const PersistentLayer& layer);

template <typename Ratio>
struct PersistentRowsPack {
  std::vector<SumOf<Ratio>> start;
  std::vector<Ratio> ratio;
};
/// The arrays behind the pointers, on the host.
struct PersistentPack {
  PersistentLayer layer;
  std::array<std::string, kPersistentForms> refusals;  // why a form does not run the layer
  std::tuple<PersistentRowsPack<float>, PersistentRowsPack<Fixed>, PersistentRowsPack<WideFixed>,
             PersistentRowsPack<double>>
      rows;
  std::tuple<ProductPack<float>, ProductPack<Fixed>, ProductPack<double>> W;
  std::tuple<ProductPack<float>, ProductPack<Fixed>, ProductPack<WideFixed>, ProductPack<double>> R;
  std::vector<uint8_t> fragments, grid_fragments;
  std::vector<float> tables;
};

/// kUnsupported where x or h has more than 16 bits, or weights more than 8 or unsigned codes above 127.
Status check_widths(const GruLayerParameters& p);

/// Packs a layer for the current device, and prepares the device's kernels. A layer that none of them runs has the
/// reasons only.
Result<PersistentPack> pack_persistent(const GruLayerParameters& p);

// ---- The forms. prepare: sets the form's own cut on the current device, groups that it needs, and the attributes of
// its kernels; kUnsupported: it does not run the layer there. exchange_bytes: device memory that crosses between blocks
// in runs of up to `batch` sequences; zeroed_bytes: of these, from the first one on, those that are zero when a run of
// so many sequences begins.

/// kUnsupported where the device or the build is not one of compute capability 9.0a.
Status check_90a(const DeviceLimits& limits);
/// Of a form that finds none.
Status no_room();

Status prepare_cluster(PersistentLayer& layer, const DeviceLimits& limits);
Status launch_cluster(const PersistentLayer& layer, const Recurrence& run, cudaStream_t stream);

Status prepare_cluster_many(PersistentLayer& layer, const DeviceLimits& limits);
Status launch_cluster_many(const PersistentLayer& layer, const Recurrence& run, cudaStream_t stream);
/// How gru_cluster_many goes through so many sequences: teams that are on the device at once make a wave, and a team
/// has so many tiles.
struct ClusterWaves {
  int64_t count, tiles;
};
ClusterWaves cluster_many_waves(const PersistentLayer& layer, int64_t batch);

Status prepare_grid(PersistentLayer& layer, const DeviceLimits& limits);
/// PersistentLayer::grid_fragments.
void pack_grid(const GruLayerParameters& p, PersistentPack& pack);
int64_t grid_exchange_bytes(const PersistentLayer& layer, int64_t batch);
int64_t grid_zeroed_bytes(const PersistentLayer& layer, int64_t batch);
Status launch_grid(const PersistentLayer& layer, const Recurrence& run, std::byte* exchange, cudaStream_t stream);

Status prepare_portable(PersistentLayer& layer, const DeviceLimits& limits);
int64_t portable_exchange_bytes(const PersistentLayer& layer, int64_t batch);
int64_t portable_zeroed_bytes(const PersistentLayer& layer, int64_t batch);
Status launch_portable(const PersistentLayer& layer, const Recurrence& run, std::byte* exchange, cudaStream_t stream);

Status prepare_products(PersistentLayer& layer, const DeviceLimits& limits);
/// How often the blocks of a step fill the device.
int64_t products_rounds(const PersistentLayer& layer, int64_t batch);
/// x and h of so many sequences as the kernel takes them.
int64_t products_padded_bytes(const PersistentLayer& layer, int64_t batch);
/// One launch a step, and one before it for what has to be padded of x and h: what are not bytes of signed codes in
/// rows of whole pieces of 16 bytes, or a state that the step writes over. run.ih is not read. x: the rows of these
/// steps. scratch: products_padded_bytes.
Status launch_products(const PersistentLayer& layer, const Recurrence& run, const ProductRows& x, std::byte* scratch,
                       cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PERSISTENT_H_
