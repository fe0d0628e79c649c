// SPDX-License-Identifier: Apache-2.0
// The gates after both products (cuda_products.h). Both are 16-bit codes in the order of PersistentChunk::ih: of W x
// the gate inputs, of R h hh itself, minus zero point, plus 32768.
#include "gru/cuda_products.h"

#include <algorithm>

#include "core/cuda_launch.h"
#include "core/cuda_ptx.cuh"
#include "gru/cuda_recurrence.cuh"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Two cells a thread, units u and u + 8 of a group: one's instructions wait for each other. t: the step of the run
/// that this one is.
template <int Planes, typename Ratio>
__global__ void __launch_bounds__(kThreads)
    gru_gates_of_products(const __grid_constant__ RecurrenceArgs<Ratio> a, int32_t t, const uint16_t* hh) {
  using Real = LaneOf<Ratio>;
  const GateLanes<Real>& c = a.gates;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t n = index / (a.groups * 8);
  const int of_sequence = static_cast<int>(index - n * (a.groups * 8));
  const int group = of_sequence / 8;
  const int unit = of_sequence % 8;  // and 8 more
  wait_for_grid_before();
  if (n >= a.batch) return;
  const int64_t row = (n * a.groups + group) * 48 + unit;
  const uint16_t* const from_ih = a.ih + int64_t{t} * a.batch * a.groups * 48 + row;
  Real from_x[3][2], from_h[3][2], h[2];
  uint32_t code[2], fresh[2];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // padded units are there
      from_x[gate][i] = from_biased<Real>(from_ih[gate * 16 + i * 8]);
      from_h[gate][i] = from_biased<Real>(hh[row + gate * 16 + i * 8]);
    }
  const auto unit_of = [&](int i) { return group * 16 + unit + i * 8; };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    code[i] = 0;
    if (unit_of(i) < a.hidden) {
      // Planes from the high byte down; memory is little endian.
      const uint8_t* const state = a.state + (n * a.hidden + unit_of(i)) * Planes;
      code[i] = state[Planes - 1] ^ (a.flip & 0xff);
      if (Planes == 2) code[i] = code[i] << 8 | state[0];
    }
    h[i] = from_code<Real>(code[i], c.h_from_code);
  }
  const int length = a.lengths != nullptr ? max(a.lengths[n], 0) - a.first_step : INT32_MAX;
  gru_gates(c, reinterpret_cast<const uint8_t*>(a.tables), from_x, from_h, h, fresh);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (unit_of(i) >= a.hidden) break;
    if (t < length && !is_masked(a, t, n, unit_of(i))) code[i] = fresh[i] & (Planes == 2 ? 0xffff : 0xff);
    const uint32_t shown = t >= length ? c.h_to_unsigned : code[i];
    const auto store = [&](uint8_t* to, uint32_t value) {
      to[Planes - 1] = static_cast<uint8_t>(value >> 8 * (Planes - 1) ^ a.flip);
      if (Planes == 2) to[0] = static_cast<uint8_t>(value);
    };
    store(a.y + t * a.y_step + n * a.y_sequence + int64_t{unit_of(i)} * Planes, shown);
    store(a.next_state + (n * a.hidden + unit_of(i)) * Planes, code[i]);
  }
}

const ProductShape& shape_of(const PersistentLayer& layer) {
  switch (layer.ratios.h) {
    case RatioType::kFloat: return std::get<DeviceProduct<float>>(layer.R).shape;
    case RatioType::kShift:
    case RatioType::kFixed:
      return layer.h_planes == 2 ? std::get<DeviceProduct<WideFixed>>(layer.R).shape
                                 : std::get<DeviceProduct<Fixed>>(layer.R).shape;
    case RatioType::kDouble: break;
  }
  return std::get<DeviceProduct<double>>(layer.R).shape;
}

}  // namespace

int64_t products_scratch_bytes(const PersistentLayer& layer, int64_t batch) {
  return aligned(product_x_bytes(shape_of(layer), batch)) + batch * layer.groups * 96;
}

template <typename Ratio>
Status launch_products(const PersistentLayer& layer, const PersistentChunk& chunk, std::byte* scratch,
                       cudaStream_t stream, const std::function<Status(int64_t)>& input_product) {
  const auto& R = std::get<DeviceProduct<Ratio>>(layer.R);
  auto* const h = reinterpret_cast<uint8_t*>(scratch);
  auto* const hh = reinterpret_cast<uint16_t*>(scratch + aligned(product_x_bytes(R.shape, chunk.batch)));
  RecurrenceArgs<Ratio> a{};
  set_recurrence(a, layer, chunk);
  ProductRows rows;
  rows.rows = chunk.batch;
  rows.batch = chunk.batch;
  rows.sequence = int64_t{layer.hidden_size} * layer.h_planes;
  rows.flip = static_cast<uint8_t>(layer.h_flip);
  const ProductKernel kernel = choose_product_kernel(R.shape, chunk.batch);
  cudaLaunchAttribute early = early_start();
  cudaLaunchConfig_t config{};
  const int64_t threads = chunk.batch * layer.groups * 8;
  config.gridDim = dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = R.shape.starts_early ? 1 : 0;
  for (int64_t s = 0; s < chunk.steps; ++s) {
    rows.codes = a.state;
    ISOBIT_RETURN_IF_ERROR(pad_product_x(R.shape, kernel, rows, h, stream, s == 0));
    if (s == 0) ISOBIT_RETURN_IF_ERROR(input_product(product_blocks_left(R.shape, kernel, chunk.batch)));
    ISOBIT_RETURN_IF_ERROR(
        launch_product(R, kernel, h, chunk.batch, hh, stream, s == 0 ? ProductOrder::kSecond : ProductOrder::kAlone));
    const auto t = static_cast<int32_t>(chunk.reverse ? chunk.steps - 1 - s : s);
    ISOBIT_RETURN_IF_ERROR(with_planes<Ratio>(layer.h_planes, [&](auto planes) {
      return cuda_status(
          cudaLaunchKernelEx(&config, gru_gates_of_products<planes(), Ratio>, a, t, static_cast<const uint16_t*>(hh)),
          "kernel gru_gates_of_products");
    }));
    a.state = chunk.next_state;
  }
  return {};
}

#define ISOBIT_PRODUCTS_LANES(Ratio)                                                                               \
  template Status launch_products<Ratio>(const PersistentLayer&, const PersistentChunk&, std::byte*, cudaStream_t, \
                                         const std::function<Status(int64_t)>&);
ISOBIT_PRODUCTS_LANES(float)
ISOBIT_PRODUCTS_LANES(Fixed)
ISOBIT_PRODUCTS_LANES(WideFixed)
ISOBIT_PRODUCTS_LANES(double)
#undef ISOBIT_PRODUCTS_LANES

}  // namespace isobit::cuda
