// SPDX-License-Identifier: Apache-2.0
// The host side of gru_products: which layers it runs, how a step is cut into tiles, launches.
#include "gru/cuda/products.cuh"

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>

#include "core/cuda/arguments.h"
#include "core/cuda/grid_launch.h"
#include "core/cuda/status.h"
#include "product/product.h"

namespace isobit::cuda {
namespace {

constexpr int32_t kLeastHidden = 257;
constexpr int32_t kCluster = 2;  // four read less from the cache, gained nothing, and fewer of them fit the device
/// What a tile takes beside its products, in columns.
constexpr int64_t kTileColumns = 48;

int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }
Status unsupported(const std::string& what) { return {StatusCode::kUnsupported, what}; }

template <int kValue>
using Constant = std::integral_constant<int, kValue>;
/// Calls body with the ratios of W x, the planes of x, and the same of R h. choose_ratios makes a float of x only where
/// all sums of both fit one, and of bytes no other type beside a float of h.
template <typename Body>
Status with_types(const PersistentLayer& layer, Body body) {
  const bool x_is_double = layer.ratios.x == RatioType::kDouble;
  const auto with_h = [&](auto planes, auto ratio) -> Status {
    using Two = Constant<2>;
    if (layer.x_planes == 2)
      return x_is_double ? body(double(), Two(), ratio, planes) : body(Fixed(), Two(), ratio, planes);
    if constexpr (std::is_same_v<decltype(ratio), float>) {
      return body(float(), Constant<1>(), ratio, planes);
    } else {
      return x_is_double ? body(double(), Constant<1>(), ratio, planes) : body(Fixed(), Constant<1>(), ratio, planes);
    }
  };
  return with_lanes(layer, [&](auto ratio, auto planes) { return with_h(planes, ratio); });
}
/// Whether with_types finds the layer's own.
bool has_types(const PersistentLayer& layer) {
  const bool floats = layer.ratios.h == RatioType::kFloat && layer.x_planes == 1;
  return (layer.ratios.x == RatioType::kFloat) == floats;
}

/// Planes of sums: those of x are one where they fit a word.
int32_t sums_of(const PersistentLayer& layer) {
  return layer.h_planes + (layer.ratios.x == RatioType::kDouble ? layer.x_planes : 1);
}
/// The widest tile whose sums have room.
constexpr int32_t most_columns(int32_t sums) { return sums <= 3 ? 192 : 96; }
/// Calls body with a ProductsTile.
template <typename XRatio, int XPlanes, typename Ratio, int HPlanes, typename Body>
Status with_tile(int32_t columns, Body body) {
  if constexpr (most_columns(HPlanes + (std::is_same_v<XRatio, double> ? XPlanes : 1)) == 192) {
    if (columns == 192) return body(ProductsTile<192, XPlanes, XRatio, HPlanes, Ratio>());
    if (columns == 144) return body(ProductsTile<144, XPlanes, XRatio, HPlanes, Ratio>());
  }
  return columns == 96 ? body(ProductsTile<96, XPlanes, XRatio, HPlanes, Ratio>())
                       : body(ProductsTile<48, XPlanes, XRatio, HPlanes, Ratio>());
}

struct Cut {
  int32_t columns = 0, cluster = 1;
  int64_t row_blocks = 1, n_tiles = 1, rounds = 1;
};
/// The narrowest tiles of which all are on the device at once; of several rounds the ones that take the least time, and
/// of those the widest.
Cut cut_of(const PersistentLayer& layer, int64_t batch) {
  Cut cut;
  cut.row_blocks = ceil_div(batch, kWgmmaRows);
  if (cut.row_blocks > 1) {
    cut.cluster = kCluster;
    cut.row_blocks = ceil_div(cut.row_blocks, kCluster) * kCluster;
  }
  int64_t least = INT64_MAX;
  for (const int32_t columns : kProductsColumns) {
    if (columns > most_columns(sums_of(layer))) break;
    const int64_t n_tiles = ceil_div(ceil_div(layer.hidden_size, 16) * 48, columns);
    const int64_t rounds = ceil_div(cut.row_blocks * n_tiles, layer.products_room);
    const int64_t time = rounds * (columns + kTileColumns);
    if (time > least) continue;
    least = time;
    cut.rounds = rounds;
    cut.columns = columns;
    cut.n_tiles = n_tiles;
  }
  return cut;
}

template <typename Tile>
GridLaunch launch_of(const Cut& cut) {
  return {
      static_cast<unsigned>(cut.row_blocks * cut.n_tiles), kProductsThreads, Tile::kTotal, cut.cluster, false, true};
}

template <typename Tile>
Status launch_steps(const PersistentLayer& layer, const Recurrence& run, const ProductRows& x, std::byte* scratch,
                    const Cut& cut, cudaStream_t stream) {
  using Ratio = typename Tile::Ratio;
  const auto& W = std::get<DeviceProduct<typename Tile::XRatio>>(layer.W);
  const auto& R = std::get<DeviceProduct<Ratio>>(layer.R);
  auto* const padded_x = reinterpret_cast<uint8_t*>(scratch);
  auto* const padded_h = padded_x + aligned_size(product_x_bytes(W.shape, run.batch));
  RecurrenceArgs<Ratio> a = recurrence_args<Ratio>(layer, run);
  ProductRows x_rows = x, h_rows;
  x_rows.rows = h_rows.rows = h_rows.batch = run.batch;
  h_rows.sequence = int64_t{layer.hidden_size} * layer.h_planes;
  h_rows.flip = static_cast<uint8_t>(layer.h_flip);
  ProductsArgs<typename Tile::XRatio, Ratio> p{};
  p.W = wgmma_weights(W);
  p.R = wgmma_weights(R);
  p.n_tiles = static_cast<int32_t>(cut.n_tiles);
  p.cluster = cut.cluster;
  // Bits that an address, or what is added to it, must not have for two units beside each other to be aligned.
  const auto odd = [](uint64_t bits, int32_t unit) { return bits % static_cast<uint64_t>(2 * unit) != 0; };
  const uint64_t y_bits =
      reinterpret_cast<uintptr_t>(a.y) | static_cast<uint64_t>(a.y_step) | static_cast<uint64_t>(a.y_sequence);
  // A step that reads its state in place must write the next one elsewhere: to two places in turn, of which the last
  // step's is the caller's, and the other one where h would be padded.
  const auto state_has_map = [&](const uint8_t* state) {
    h_rows.codes = state;
    return has_map(h_rows, R.shape.planes);
  };
  const bool x_has_map = has_map(x_rows, W.shape.planes);
  // Padded tiles do not begin in the one before: where the last one would, both are padded or none.
  const bool both_alike = run.batch > kWgmmaRows && run.batch % kWgmmaRows != 0;
  const bool has_turns = state_has_map(a.state) && state_has_map(run.next_state) && (x_has_map || !both_alike);
  const int64_t state_bytes = run.batch * h_rows.sequence;
  const auto overlap = [&](const uint8_t* one, const uint8_t* another) {
    return one < another + state_bytes && another < one + state_bytes;
  };
  for (int64_t s = 0; s < run.steps; ++s) {
    const int64_t t = run.reverse ? run.steps - 1 - s : s;
    a.next_state = has_turns && (run.steps - s) % 2 == 0 ? padded_h : run.next_state;
    x_rows.codes = x.codes + t * x.step;
    if (s > 0) x_rows.floats.begins = false;
    const bool h_is_read = state_has_map(a.state) && !overlap(a.state, a.next_state);
    const bool pads_x = !x_has_map || (both_alike && !h_is_read), pads_h = !h_is_read || (both_alike && !x_has_map);
    const ProductPadding x_padding{&W.shape, x_rows, padded_x}, h_padding{&R.shape, h_rows, padded_h};
    p.x = pads_x ? padded_x : nullptr;
    p.h = pads_h ? padded_h : nullptr;
    if (pads_x && pads_h) {
      ISOBIT_RETURN_IF_ERROR(pad_product_x(x_padding, h_padding, stream));
    } else if (pads_x || pads_h) {
      ISOBIT_RETURN_IF_ERROR(pad_product_x(pads_x ? x_padding : h_padding, stream));
    }
    if (!pads_x) ISOBIT_RETURN_IF_ERROR(map_rows(x_rows, W.shape.k, kWgmmaRows, p.x_rows));
    if (!pads_h) ISOBIT_RETURN_IF_ERROR(map_rows(h_rows, R.shape.k, kWgmmaRows, p.h_rows));
    p.t = static_cast<int32_t>(t);
    p.pairs = !odd(y_bits, a.y_unit) &&
              !odd(reinterpret_cast<uintptr_t>(a.state) | reinterpret_cast<uintptr_t>(a.next_state) |
                       static_cast<uint64_t>(h_rows.sequence),
                   layer.h_planes);
    ISOBIT_RETURN_IF_ERROR(launch_of<Tile>(cut).run("kernel gru_products", gru_products<Tile>, stream, p, a));
    a.state = a.next_state;
  }
  return {};
}

}  // namespace

Status prepare_products(PersistentLayer& layer, const DeviceLimits& limits) {
  if (layer.hidden_size < kLeastHidden)
    return unsupported("H is " + std::to_string(layer.hidden_size) + ", must be at least " +
                       std::to_string(kLeastHidden));
  if (layer.hidden_size > kMaxLinearK)  // a plane's sum would not fit 32 bits
    return unsupported("H is " + std::to_string(layer.hidden_size) + ", must be at most " +
                       std::to_string(kMaxLinearK));
  ISOBIT_RETURN_IF_ERROR(check_90a(limits));
  if (limits.block_shared < kProductsShared)
    return unsupported("a block has " + std::to_string(limits.block_shared) + " bytes of shared memory, must have " +
                       std::to_string(kProductsShared));
  if (!has_types(layer))
    return unsupported("W x in float32 lanes beside a state of two bytes, or gates in double ones");
  ISOBIT_RETURN_IF_ERROR(find_tensor_maps());
  return with_types(layer, [&](auto x_ratio, auto x_planes, auto ratio, auto planes) {
    for (const int32_t columns : kProductsColumns) {
      if (columns > most_columns(sums_of(layer))) break;
      ISOBIT_RETURN_IF_ERROR(
          (with_tile<decltype(x_ratio), x_planes(), decltype(ratio), planes()>(columns, [&](auto tile) -> Status {
            using Tile = decltype(tile);
            ISOBIT_RETURN_IF_ERROR(allow_shared(gru_products<Tile>, Tile::kTotal, "gru_products: shared memory"));
            // As many blocks with tiles of every width.
            layer.products_room =
                kCluster * launch_of<Tile>({columns, kCluster, kCluster}).clusters_on_device(gru_products<Tile>);
            return layer.products_room > 0 ? Status() : unsupported("no cluster of gru_products fits the device");
          })));
    }
    return Status();
  });
}

int64_t products_rounds(const PersistentLayer& layer, int64_t batch) { return cut_of(layer, batch).rounds; }

int64_t products_padded_bytes(const PersistentLayer& layer, int64_t batch) {
  ProductShape h;
  h.planes = layer.h_planes;
  h.k_blocks = static_cast<int32_t>(ceil_div(layer.hidden_size, kWgmmaDepth));
  return aligned_size(product_x_bytes(product_shape(layer), batch)) + product_x_bytes(h, batch);
}

Status launch_products(const PersistentLayer& layer, const Recurrence& run, const ProductRows& x, std::byte* scratch,
                       cudaStream_t stream) {
  const Cut cut = cut_of(layer, run.batch);
  return with_types(layer, [&](auto x_ratio, auto x_planes, auto ratio, auto planes) {
    return with_tile<decltype(x_ratio), x_planes(), decltype(ratio), planes()>(
        cut.columns, [&](auto tile) { return launch_steps<decltype(tile)>(layer, run, x, scratch, cut, stream); });
  });
}

}  // namespace isobit::cuda
