// SPDX-License-Identifier: Apache-2.0
// What a layer needs to run on the persistent kernels (cluster.cuh, cluster_many.cuh, grid.cuh,
// portable.cuh), in device memory.
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
#include "gru/cuda/ratios.h"
#include "isobit/gru.h"
#include "isobit/status.h"
#include "product/cuda/product.h"

namespace isobit::cuda {

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

/// One way to cut the hidden units, and how many teams of it are on the device at once.
struct PersistentCut {
  int32_t cluster = 0;         // blocks of a team
  int32_t unit_blocks = 0;     // groups of 16 units of a block
  int32_t room = 0;            // teams
  int32_t sequence_tiles = 0;  // as many as fit shared memory
  int32_t least_shared = 0;    // bytes of shared memory of a block, at least
  // Of gru_cluster; 0 for gru_cluster_many.
  int32_t k_tiles = 0;   // of a warp
  int32_t k_splits = 0;  // warps that share a group
  int32_t k_shared = 0;  // of k_tiles, those in shared memory
  int32_t most = 0;      // sequences of a team, while no other cut is faster
  int32_t few = 0;       // sequences of a team, while gru_cluster_few is faster
};

inline constexpr int32_t kMaxCuts = 3;

/// How blocks of a launch, one for each group of 16 units, are a team (grid.cuh).
struct GridCut {
  int32_t cluster = 0;               // of the kernel for many sequences; 0: it does not run there
  int32_t slots16 = 0, slots32 = 0;  // turns of 16 and 32 sequences whose state fits shared memory
  int32_t teams = 0;                 // that are on the device at once
  int32_t k_tiles = 0;               // of a team
};

/// How a layer is cut for portable.cuh.
struct PortableCut {
  int32_t blocks = 0;       // of a team
  int32_t unit_blocks = 0;  // groups of 16 units of a block
  int32_t warp_tiles = 0;   // k tiles of a warp
  int32_t teams = 0;        // that are on the device at once
};

struct PersistentLayer {
  bool fits[kPersistentForms]{};  // which forms run it
  bool grid = false;              // H above 1024: no clusters
  GridCut grid_cut{};
  PortableCut portable{};
  PersistentCut cut[kMaxCuts]{};
  PersistentCut many{};  // of gru_cluster_many
  int32_t cuts = 0;      // the first is the fastest for few sequences
  LayerRatios ratios{};
  int32_t k_tiles = 4;                                  // of all columns of R in `fragments`
  int32_t groups = 1;                                   // of 16 units, padded ones included
  int32_t hidden_size = 0, h_planes = 1, x_planes = 1;  // planes: bytes of a code
  // Of each type that there is, one is set.
  std::tuple<GateLanes<float>, GateLanes<double>> gates{};
  std::tuple<PersistentRows<float>, PersistentRows<Fixed>, PersistentRows<WideFixed>, PersistentRows<double>> rows{};
  // Accumulator -> ih -> gate input, in the order of PersistentChunk::ih.
  std::tuple<DeviceProduct<float>, DeviceProduct<Fixed>, DeviceProduct<double>> W{};
  // Accumulator -> hh, in the same order: what gru_products takes, the image only.
  std::tuple<DeviceProduct<float>, DeviceProduct<Fixed>, DeviceProduct<WideFixed>, DeviceProduct<double>> R{};
  int32_t products_room = 0;              // blocks of gru_products that are on the device at once
  const uint4* fragments = nullptr;       // R: [groups][k_tiles][gate][lane][16 bytes] (pack_fragments)
  const uint4* grid_fragments = nullptr;  // R for gru_grid_many
  const float* tables = nullptr;          // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries = 0;
  uint32_t h_flip = 0;  // the sign bit of signed codes, in all four bytes
  uint8_t x_flip = 0;
};

inline bool fits(const PersistentLayer& layer, PersistentForm form) { return layer.fits[static_cast<size_t>(form)]; }

/// The fastest form of a run that any form can take.
PersistentForm fastest_form(const PersistentLayer& layer, int64_t batch, int64_t steps);

/// Steps of a run, of which ih holds those from `first_step` on.
struct PersistentChunk {
  const uint16_t* ih;
  int64_t first_step, steps, batch;
  const uint8_t* state;        // [batch][hidden] codes
  uint8_t* next_state;         // after the last step; may be `state`
  uint8_t* y;                  // of the first of these steps, at this direction's columns
  int64_t y_step, y_sequence;  // bytes
  int32_t y_unit;              // the same
  float y_scale;               // RecurrenceArgs
  const int32_t* lengths;      // [batch], or null
  const uint8_t* mask;         // [all steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
  uint32_t delays;  // 0, or a seed: set_exchange_delays
};

template <typename Ratio>
struct PersistentRowsPack {
  std::vector<SumOf<Ratio>> start;
  std::vector<Ratio> ratio;
};
/// Calls body with the planes of h as a constant: WideFixed is for two, Fixed and float are for one, double for both.
template <typename Ratio, typename Body>
auto with_planes(int32_t planes, Body body) {
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  if constexpr (std::is_same_v<Ratio, WideFixed>) {
    return body(Two());
  } else if constexpr (std::is_same_v<Ratio, double>) {
    return planes == 2 ? body(Two()) : body(One());
  } else {
    return body(One());
  }
}

/// The shape of W x.
const ProductShape& product_shape(const PersistentLayer& layer);

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

/// Packs a layer for the current device, and prepares the device's kernels. A layer that none of them runs has the
/// reasons only.
Result<PersistentPack> pack_persistent(const GruLayerParameters& p);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PERSISTENT_H_
