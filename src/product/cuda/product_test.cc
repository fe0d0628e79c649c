// SPDX-License-Identifier: Apache-2.0
// The kernels of the product against a loop on the host, byte for byte.
#include "product/cuda/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "core/random.h"
#include "core/rescale.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using isobit::testing::GuardedDeviceBuffer;
using isobit::testing::sanitized;

/// About this ratio; of integers every third a power of two, so that results lie halfway between integers, too.
template <typename Ratio>
Ratio ratio_near(Random& random, double ratio) {
  if constexpr (kIsInteger<Ratio>) {
    int exponent = 0;
    const double fraction = std::frexp(std::min(ratio, 0.24), &exponent);
    RescaleParameters rescale{1, 1 - exponent};
    if (!random.one_in(3)) rescale = {static_cast<int32_t>(fraction * 0x7fffffff), 31 - exponent};
    return to_fixed<Ratio>(rescale).value();
  } else {
    return static_cast<float>(ratio);  // of 24 bits in either case: expected() relies on it
  }
}

/// Results on both sides of the limits and between them; every fourth matrix has the largest sums that there are.
template <typename Ratio>
ProductWeights<Ratio> random_weights(Random& random, int64_t n, int64_t k, int32_t planes) {
  ProductWeights<Ratio> weights;
  weights.n = n;
  weights.k = k;
  weights.planes = planes;
  weights.w.resize(static_cast<size_t>(n * k));
  const bool extreme = random.one_in(4);
  // Sums of codes of two bytes fit 32 bits where Fixed rescales them.
  const int64_t most = std::is_same_v<Ratio, Fixed> && planes == 2 ? std::min<int64_t>((1 << 14) / k, 127) : 127;
  for (int64_t row = 0; row < n; ++row)
    for (int64_t i = 0; i < k; ++i)
      weights.w[static_cast<size_t>(row * k + i)] =
          static_cast<int8_t>(extreme ? (row % 2 == 0 ? -most - 1 : most) : random.between(-most - 1, most));
  const bool wide = random.one_in(2);
  weights.low = wide ? -32768 : -100;
  weights.high = wide ? 32767 : 155;
  const double typical =
      std::ldexp(std::sqrt(static_cast<double>(k)) * static_cast<double>(most + 1), planes == 1 ? 6 : 14);  // of a sum
  // In double lanes a start may have more than 32 bits.
  const int64_t start = std::is_same_v<Ratio, double> && random.one_in(4) ? int64_t{1} << 34 : 1 << 18;
  weights.by_shifts = kIsInteger<Ratio> && random.one_in(3);
  for (int64_t row = 0; row < n; ++row) {
    const auto uniform = [&] { return static_cast<double>(random.between(1, 1 << 20)) * 0x1p-20; };
    weights.start.push_back(static_cast<SumOf<Ratio>>(random.between(-start, start)));
    weights.ratio.push_back(ratio_near<Ratio>(random, 1.5 * static_cast<double>(weights.high) / typical * uniform()));
    if constexpr (kIsInteger<Ratio>)
      if (weights.by_shifts) {
        const int32_t shift = std::clamp(1 - std::ilogb(1.5 * static_cast<double>(weights.high) / typical), 1, 30);
        weights.ratio.back() = {0, shift};
        weights.start.back() += (1 << (shift - 1)) - 1;
      }
    weights.again.push_back(static_cast<float>(wide ? uniform() : 200 * uniform()));
  }
  return weights;
}

struct Rows {
  std::vector<uint8_t> codes;  // as in memory
  ProductRows at;              // its pointer is set by run()
};

/// `batch` sequences; rows of `bytes` bytes with `gap` more between them.
Rows random_rows(Random& random, int64_t rows, int64_t batch, int64_t bytes, int64_t gap) {
  Rows result;
  result.at.rows = rows;
  result.at.batch = batch;
  result.at.sequence = bytes + gap;
  result.at.step = batch * (bytes + gap);
  result.at.flip = random.one_in(2) ? 0x80 : 0;
  result.codes.resize(static_cast<size_t>((rows + batch - 1) / batch * result.at.step));
  const bool extreme = random.one_in(4);
  for (uint8_t& code : result.codes)
    code = extreme ? static_cast<uint8_t>(0xff ^ result.at.flip) : static_cast<uint8_t>(random.next() >> 56);
  return result;
}

/// The weights on the device.
template <typename Ratio>
struct OnDevice {
  explicit OnDevice(const ProductPack<Ratio>& pack)
      : w(bytes_of(pack.w)),
        start(bytes_of(pack.start)),
        ratio(bytes_of(pack.ratio)),
        again(bytes_of(pack.again)),
        image(bytes_of(pack.image)),
        product(pack.product) {
    w.write(pack.w);
    start.write(pack.start);
    ratio.write(pack.ratio);
    again.write(pack.again);
    image.write(pack.image);
    product.shape.w = static_cast<const int8_t*>(w.data());
    product.start = static_cast<const SumOf<Ratio>*>(start.data());
    product.ratio = static_cast<const Ratio*>(ratio.data());
    product.again = static_cast<const LaneOf<Ratio>*>(again.data());
    product.shape.image = static_cast<const uint8_t*>(image.data());
  }
  template <typename T>
  static int64_t bytes_of(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
  }
  GuardedDeviceBuffer w, start, ratio, again, image;
  DeviceProduct<Ratio> product;
};

/// The product of x, or of `padded`.
template <typename Ratio>
std::vector<uint16_t> run_with(const DeviceProduct<Ratio>& product, ProductKernel kernel, const ProductRows& x,
                               const uint8_t* padded, int32_t columns) {
  GuardedDeviceBuffer out(x.rows * product.shape.n * 2);
  const Status launch =
      launch_product(product, kernel, x, padded, static_cast<uint16_t*>(out.data()), nullptr, columns);
  EXPECT_TRUE(launch.ok()) << launch.message();
  const cudaError_t error = cudaDeviceSynchronize();
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  return out.read<uint16_t>();
}
/// The product with what pad(x) writes to x.
template <typename Ratio, typename Pad>
std::vector<uint16_t> run_padded(const DeviceProduct<Ratio>& product, ProductKernel kernel, int64_t rows,
                                 int32_t columns, Pad pad) {
  GuardedDeviceBuffer x(product_x_bytes(product.shape, rows));
  auto* const padded = static_cast<uint8_t*>(x.data());
  const Status padding = pad(padded);
  EXPECT_TRUE(padding.ok()) << padding.message();
  ProductRows from;
  from.rows = rows;
  std::vector<uint16_t> result = run_with(product, kernel, from, padded, columns);
  static_cast<void>(x.read<uint8_t>());  // guards
  return result;
}

template <typename Ratio>
std::vector<uint16_t> run(const DeviceProduct<Ratio>& product, ProductKernel kernel, const Rows& rows,
                          int32_t columns = 0) {
  GuardedDeviceBuffer codes(static_cast<int64_t>(rows.codes.size()));
  codes.write(rows.codes);
  ProductRows from = rows.at;
  from.codes = static_cast<const uint8_t*>(codes.data());
  return run_padded(product, kernel, rows.at.rows, columns,
                    [&](uint8_t* x) { return pad_product_x(product.shape, kernel, from, x, nullptr); });
}

/// Floats that are quantised to the codes of `rows`, in rows at the same places; NaN between rows.
struct FloatRows {
  FloatRows(Random& random, const Rows& rows, int64_t k, int32_t planes) : at(rows.at) {
    const bool is_signed = at.flip != 0;
    DeviceFloats& floats = at.floats;
    floats.min = is_signed ? -(int64_t{1} << (8 * planes - 1)) : 0;
    floats.max = floats.min + (int64_t{1} << (8 * planes)) - 1;
    floats.zero_point = random.between(floats.min, floats.max);
    floats.inverse_scale = 16.0f;
    values.assign(rows.codes.size() / static_cast<size_t>(planes), std::numeric_limits<float>::quiet_NaN());
    at.step = rows.at.step / planes * 4;
    at.sequence = rows.at.sequence / planes * 4;
    for (int64_t row = 0; row < at.rows; ++row)
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t* const bytes =
            rows.codes.data() + row / at.batch * rows.at.step + row % at.batch * rows.at.sequence + i * planes;
        int64_t code = planes == 1 ? bytes[0] : bytes[0] + 256 * bytes[1];
        if (code > floats.max) code -= int64_t{1} << (8 * planes);
        const auto steps =
            static_cast<float>(code - floats.zero_point) + static_cast<float>(random.between(-3, 3)) / 8.0f;  // exact
        values[index(row, i)] = steps / floats.inverse_scale;
      }
  }
  size_t index(int64_t row, int64_t i) const {
    return static_cast<size_t>(row / at.batch * at.step / 4 + row % at.batch * at.sequence / 4 + i);
  }
  std::vector<float> values;
  ProductRows at;  // its pointers are set where it is on the device
};

template <typename Ratio>
uint16_t expected(const ProductWeights<Ratio>& weights, const Rows& rows, int64_t m, int64_t n) {
  const uint8_t* x = rows.codes.data() + m / rows.at.batch * rows.at.step + m % rows.at.batch * rows.at.sequence;
  const int8_t* w = weights.w.data() + n * weights.k;
  const auto row = static_cast<size_t>(n);
  auto sum = static_cast<int64_t>(weights.start[row]);
  for (int64_t k = 0; k < weights.k; ++k) {
    const uint8_t* bytes = x + k * weights.planes;  // little-endian
    int64_t code = bytes[weights.planes - 1] ^ rows.at.flip;
    if (weights.planes == 2) code = code * 256 + bytes[0];
    sum += w[k] * code;
  }
  // Products of a sum of at most 36 bits and a ratio of 24, and of 32 and 31, are exact in long double; not those of 39
  // and 31.
  static_assert(std::numeric_limits<long double>::digits >= 63);
  long double value;
  if constexpr (kIsInteger<Ratio>) {
    const Ratio ratio = weights.ratio[row];
    if (weights.by_shifts) sum -= (int64_t{1} << (ratio.shift - 1)) - 1;
    const Int128 product = weights.by_shifts ? Int128{sum} : Int128{sum} * ratio.multiplier;
    const int shift = weights.by_shifts ? ratio.shift : 32 + ratio.shift;
    const Int128 down = product >> shift;
    const Int128 twice_rest = (product - (down << shift)) * 2;
    const Int128 unit = Int128{1} << shift;
    value = static_cast<long double>(down + (twice_rest > unit || (twice_rest == unit && down % 2 != 0) ? 1 : 0));
  } else {
    // In float lanes a sum of more than 24 bits is rounded first.
    const long double exact = std::is_same_v<Ratio, float> ? static_cast<float>(sum) : static_cast<long double>(sum);
    value = std::nearbyint(exact * static_cast<long double>(weights.ratio[row]));
  }
  const auto clamped = std::clamp<long double>(value, weights.low, weights.high);
  return static_cast<uint16_t>(static_cast<int32_t>(std::nearbyint(clamped * weights.again[row])) + 32768);
}

class CudaProduct : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }

  /// Any ratios for codes of a byte. Clusters: at most so many at once, so that each has many tiles; 0: as the device
  /// has room.
  void compare(int64_t m, int64_t n, int64_t k, int32_t clusters = 0) {
    switch (random_.between(0, 2)) {
      case 0: compare_in<float>(m, n, k, 1, clusters); break;
      case 1: compare_in<Fixed>(m, n, k, 1, clusters); break;
      default: compare_in<double>(m, n, k, 1, clusters);
    }
  }

  template <typename Ratio>
  void compare_in(int64_t m, int64_t n, int64_t k, int32_t planes, int32_t clusters,
                  std::set<int32_t>* widths = nullptr) {
    const ProductWeights<Ratio> weights = random_weights<Ratio>(random_, n, k, planes);
    const Rows rows =
        random_rows(random_, m, random_.between(1, 70), k * planes, random_.one_in(2) ? 0 : random_.between(0, 20));
    Result<ProductPack<Ratio>> pack = pack_product(weights);
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    ProductShape& shape = pack->product.shape;
    if (clusters > 0) shape.clusters = std::min(shape.clusters, clusters);
    const OnDevice<Ratio> device(*pack);
    const std::string what = "m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " + std::to_string(k) +
                             ", planes " + std::to_string(planes) + ", ratios " +
                             (std::is_same_v<Ratio, Fixed>    ? "Fixed"
                              : std::is_same_v<Ratio, double> ? "double"
                                                              : "float") +
                             ", columns " + std::to_string(shape.columns) + ", stages " + std::to_string(shape.stages) +
                             ", cluster " + std::to_string(shape.cluster) + ", clusters " +
                             std::to_string(shape.clusters);
    SCOPED_TRACE(what);
    const std::vector<uint16_t> mma = run(device.product, ProductKernel::kMma, rows);
    const auto check_row = [&](int64_t i) {
      for (int64_t j = 0; j < n; ++j)
        ASSERT_EQ(mma[static_cast<size_t>(i * n + j)], expected(weights, rows, i, j))
            << "row " << i << ", column " << j;
    };
    // All rows where that is quick, else some and the last.
    const int64_t stride = std::max<int64_t>(1, m * n * k / (int64_t{1} << (sanitized() ? 24 : 26)));
    for (int64_t i = 0; i < m; i += stride) {
      check_row(i);
      if (HasFatalFailure()) return;
    }
    check_row(m - 1);
    if (HasFatalFailure()) return;
    const auto check_equal = [&](const std::vector<uint16_t>& others, const std::string& name) {
      ASSERT_EQ(others.size(), mma.size());
      int64_t wrong = 0;
      for (size_t i = 0; i < mma.size(); ++i)
        if (others[i] != mma[i] && wrong++ < 8)
          ADD_FAILURE() << name << ", row " << static_cast<int64_t>(i) / n << ", column " << static_cast<int64_t>(i) % n
                        << ": " << others[i] << ", must be " << mma[i];
      ASSERT_EQ(wrong, 0) << "of " << mma.size();
    };
    if (shape.tiles_at_once > 0 && m <= 1000) {
      const int32_t columns = tile_columns();
      check_equal(run(device.product, ProductKernel::kOneTile, rows, columns),
                  "one tile of " + std::to_string(columns));
      if (HasFatalFailure()) return;
      one_tile_widths_.insert(columns);
    }
    if (shape.columns == 0) return;
    check_equal(run(device.product, ProductKernel::kWgmma, rows), "wgmma");
    if (HasFatalFailure()) return;
    ++wgmma_runs_;
    if (widths != nullptr) widths->insert(shape.columns);
  }

  /// Products of the wgmma kernel must have been among them on the devices whose code has it.
  void check_wgmma_ran() const {
    int major = 0, minor = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    ASSERT_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), cudaSuccess);
    std::printf("%lld products by wgmma\n", static_cast<long long>(wgmma_runs_));
    if (major == 9 && minor == 0) {
      EXPECT_GT(wgmma_runs_, 0) << "built without code for sm_90a";
    }
  }

  /// Of product_one_tile, any.
  int32_t tile_columns() {
    return kOneTileColumns[random_.between(0, static_cast<int64_t>(std::size(kOneTileColumns)) - 1)];
  }
  /// The same of tiles of each width.
  void check_one_tile_ran() const {
    if (wgmma_runs_ > 0) {
      EXPECT_EQ(one_tile_widths_, std::set<int32_t>(std::begin(kOneTileColumns), std::end(kOneTileColumns)));
    }
  }

  Random random_{20260101};
  int64_t wgmma_runs_ = 0;
  std::set<int32_t> one_tile_widths_;
};

TEST_F(CudaProduct, SmallShapes) {
  for (const int64_t m : {1, 17, 63, 64, 65, 128, 129, 300})
    for (const int64_t n : {48, 96, 144, 192, 240, 336, 384})
      for (const int64_t k : {1, 16, 31, 64, 127, 128, 129, 256, 400}) {
        if (sanitized() && !random_.one_in(16)) continue;
        compare(m, n, k);
        if (HasFatalFailure()) return;
      }
  check_wgmma_ran();
  check_one_tile_ran();
}

TEST_F(CudaProduct, CodesOfTwoBytes) {
  for (const int64_t m : {1, 65, 300})
    for (const int64_t n : {48, 96, 240})
      for (const int64_t k : {1, 31, 64, 129, 400, 1024}) {
        if (sanitized() && !random_.one_in(8)) continue;
        compare_in<double>(m, n, k, 2, 0);
        if (HasFatalFailure()) return;
        compare_in<Fixed>(m, n, k, 2, 0);
        if (HasFatalFailure()) return;
      }
  check_one_tile_ran();
}

// By wgmma from K = 641 on: rows of neither, one or both blocks of a cluster, and columns beyond n.
TEST_F(CudaProduct, StreamedWeightsForCodesOfTwoBytes) {
  for (const int64_t m : {1, 63, 64, 65, 128, 129, 500})
    for (const int64_t n : {48, 192, 240})
      for (const int64_t k : {641, 1024, 2048, 2100}) {
        if (sanitized() && !random_.one_in(16)) continue;
        for (const int32_t clusters : {0, 1}) {
          compare_in<Fixed>(m, n, k, 2, clusters);
          if (HasFatalFailure()) return;
          compare_in<double>(m, n, k, 2, clusters);
          if (HasFatalFailure()) return;
        }
      }
  if (!sanitized()) compare_in<double>(1000, 6144, 2048, 2, 5);
  check_wgmma_ran();
}

TEST_F(CudaProduct, DeepOnes) {
  for (const int64_t n : {96, 144, 192, 288, 432, 576})
    for (const int64_t k : {511, 512, 640, 768, 896, 1000, 1024, 1152, 1280, 1536, 1792, 1920, 4096}) {
      if (sanitized() && !random_.one_in(8)) continue;
      compare(random_.between(1, 400), n, k);
      if (HasFatalFailure()) return;
    }
  check_wgmma_ran();
}

TEST_F(CudaProduct, ManyTilesForEachBlock) {
  for (const int32_t clusters : {1, 3})
    for (const int64_t n : {96, 192, 384, 480, 576})
      for (const int64_t k : {100, 256, 384, 512, 1024}) {
        if (sanitized() && !random_.one_in(8)) continue;
        compare(random_.between(500, sanitized() ? 900 : 5000), n, k, clusters);
        if (HasFatalFailure()) return;
      }
  check_wgmma_ran();
}

// Both warpgroups have tiles, of fewer stages than the ring has, as many, more, and more than twice as many.
TEST_F(CudaProduct, ManyTilesOfEveryWidthAndDepth) {
  std::set<int32_t> widths;
  for (const int32_t clusters : {1, 2})
    for (const int64_t n : {96, 144, 192, 288, 576})
      for (const int64_t k : {128, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664}) {
        if (sanitized() && !random_.one_in(16)) continue;
        compare_in<float>(random_.between(300, 900), n, k, 1, clusters, &widths);
        if (HasFatalFailure()) return;
        compare_in<Fixed>(random_.between(300, 900), n, k, 1, clusters, &widths);
        if (HasFatalFailure()) return;
        compare_in<double>(random_.between(300, 900), n, k, 1, clusters, &widths);
        if (HasFatalFailure()) return;
      }
  check_wgmma_ran();
  if (!sanitized() && wgmma_runs_ > 0) {
    EXPECT_EQ(widths, (std::set<int32_t>{96, 144, 192})) << "columns of a tile";
  }
}

TEST_F(CudaProduct, LargeShapes) {
  if (sanitized()) GTEST_SKIP() << "the other tests have its cases";
  compare_in<float>(65536, 1536, 512, 1, 0);
  compare_in<float>(40001, 3072, 1024, 1, 0);
  compare_in<Fixed>(40001, 3072, 1024, 1, 0);
  compare_in<double>(40001, 3072, 1024, 1, 0);
  compare(16384, 768, 256);
  compare(30000, 1152, 384);
  check_wgmma_ran();
}

// W does not stay in shared memory: rows of neither, one or both blocks of a cluster, and columns beyond n.
TEST_F(CudaProduct, StreamedWeights) {
  for (const int64_t m : {1, 63, 64, 65, 127, 128, 129, 193, 1000, 4096})
    for (const int64_t n : {48, 192, 240})
      for (const int64_t k : {641, 1024, 1664, 2048, 2100, 4096}) {
        if (sanitized() && (m > 1000 || !random_.one_in(16))) continue;
        for (const int32_t clusters : {0, 1, 2}) {
          compare(m, n, k, clusters);
          if (HasFatalFailure()) return;
        }
      }
  if (!sanitized()) {
    compare_in<float>(4096, 6144, 2048, 1, 0);
    compare_in<Fixed>(4096, 6144, 2048, 1, 0);
    compare_in<double>(1000, 6144, 2048, 1, 5);
  }
  check_wgmma_ran();
}

// Against the same product of padded rows, which the other tests compare with the host: in every order of sequences and
// steps that a kernel can describe, and not in others.
TEST_F(CudaProduct, AlignedRowsAreReadInPlace) {
  struct Order {
    const char* name;
    int64_t batch;
    bool batch_first;
    bool has_map;
  };
  constexpr Order kOrders[] = {{"one sequence", 1, false, true},
                               {"steps of 3", 3, false, true},
                               {"70 sequences", 70, false, true},
                               {"16 sequences, batch first", 16, true, true},
                               {"64 sequences, batch first", 64, true, true},
                               {"192 sequences, batch first", 192, true, true},
                               {"3 sequences, batch first", 3, true, false},
                               {"65 sequences, batch first", 65, true, false}};
  std::map<ProductKernel, int64_t> in_place;
  const auto check_case = [&](const Order& order, int64_t m, int64_t n, int64_t k, int64_t gap, int32_t clusters) {
    SCOPED_TRACE(std::string(order.name) + ", m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " +
                 std::to_string(k) + ", gap " + std::to_string(gap) + ", clusters " + std::to_string(clusters));
    Result<ProductPack<Fixed>> pack = pack_product(random_weights<Fixed>(random_, n, k, 1));
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    ProductShape& shape = pack->product.shape;
    if (clusters > 0) shape.clusters = std::min(shape.clusters, clusters);
    const OnDevice<Fixed> device(*pack);
    Rows rows = random_rows(random_, m, order.batch, k, gap);
    const int64_t steps = (m + order.batch - 1) / order.batch;
    if (order.batch_first) {
      rows.at.step = k + gap;
      rows.at.sequence = steps * (k + gap);
    }
    rows.at.flip = 0x80;
    GuardedDeviceBuffer codes(static_cast<int64_t>(rows.codes.size()));
    codes.write(rows.codes);
    ProductRows from = rows.at;
    from.codes = static_cast<const uint8_t*>(codes.data());
    for (const ProductKernel kernel : {ProductKernel::kMma, ProductKernel::kWgmma, ProductKernel::kOneTile}) {
      if (kernel == ProductKernel::kWgmma && shape.columns == 0) continue;
      if (kernel == ProductKernel::kOneTile && (shape.tiles_at_once == 0 || m > 500)) continue;
      SCOPED_TRACE("kernel " + std::to_string(static_cast<int>(kernel)));
      const bool is_mma = kernel == ProductKernel::kMma;
      const bool is_simple = steps == 1;  // or as far apart as the sequences of one step
      ASSERT_EQ(reads_in_place(shape, kernel, from),
                (k + gap) % 16 == 0 && (is_mma ? k % 16 == 0 : order.has_map || is_simple));
      for (const auto change : {0, 1, 2}) {  // none of these is in place
        ProductRows other = from;
        if (change == 0) other.flip = 0;
        if (change == 1) ++other.codes;
        if (change == 2) other.floats.first = reinterpret_cast<const float*>(from.codes);
        ASSERT_FALSE(reads_in_place(shape, kernel, other)) << change;
      }
      if (!reads_in_place(shape, kernel, from)) continue;
      ++in_place[kernel];
      const int32_t columns = kernel == ProductKernel::kOneTile ? tile_columns() : 0;
      ASSERT_EQ(run_with(device.product, kernel, from, nullptr, columns), run(device.product, kernel, rows, columns));
    }
  };
  for (const Order& order : kOrders)
    for (const int64_t m : {1, 60, 64, 100, 129, 300, 1000})
      for (const int64_t k : {16, 33, 64, 80, 128, 200, 512, 640, 656, 1024})
        for (const int64_t gap : {int64_t{0}, (16 - k % 16) % 16 + 32}) {
          if (!random_.one_in(sanitized() ? 64 : 2) || (sanitized() && m > 300)) continue;
          check_case(order, m, random_.one_in(2) ? 192 : 240, k, gap, random_.one_in(2) ? 1 : 0);
          if (HasFatalFailure()) return;
        }
  const bool has_wgmma = in_place[ProductKernel::kWgmma] > 0;
  EXPECT_GT(in_place[ProductKernel::kMma], 0);
  EXPECT_EQ(in_place[ProductKernel::kOneTile] > 0, has_wgmma);
  wgmma_runs_ = in_place[ProductKernel::kWgmma];
  check_wgmma_ran();
}

// Against the same product of codes, which the other tests compare with the host; alone, and with codes beside them.
TEST_F(CudaProduct, RowsOfFloatsAreQuantisedAndTheFirstNanIsFound) {
  GuardedDeviceBuffer nans(kNanPlaces * 8);
  const auto check_case = [&](int64_t m, int64_t n, int64_t k, int32_t planes) {
    SCOPED_TRACE("m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " + std::to_string(k) + ", planes " +
                 std::to_string(planes));
    const Result<ProductPack<Fixed>> pack = pack_product(random_weights<Fixed>(random_, n, k, planes));
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    const OnDevice<Fixed> device(*pack);
    const ProductShape& shape = device.product.shape;
    const int64_t gap = random_.one_in(2) ? 0 : random_.between(1, 9);
    const Rows rows = random_rows(random_, m, random_.between(1, 70), k * planes, gap * planes);
    FloatRows of_floats(random_, rows, k, planes);
    GuardedDeviceBuffer codes(static_cast<int64_t>(rows.codes.size()));
    codes.write(rows.codes);
    ProductRows from_codes = rows.at;
    from_codes.codes = static_cast<const uint8_t*>(codes.data());
    // From a multiple of 16 on, and from others.
    const size_t skipped = random_.one_in(2) ? 0 : 1;
    std::vector<float> values(skipped, std::numeric_limits<float>::quiet_NaN());
    values.insert(values.end(), of_floats.values.begin(), of_floats.values.end());
    GuardedDeviceBuffer floats(static_cast<int64_t>(values.size()) * 4);
    ProductRows from = of_floats.at;
    from.floats.first = static_cast<const float*>(floats.data()) + skipped;
    from.floats.nans = static_cast<unsigned long long*>(nans.data());
    from.codes = reinterpret_cast<const uint8_t*>(from.floats.first);
    const auto first_nan = [&] {
      const auto found = nans.read<unsigned long long>();
      return *std::min_element(found.begin(), found.end());
    };
    for (const ProductKernel kernel : {ProductKernel::kMma, ProductKernel::kWgmma}) {
      if (kernel == ProductKernel::kWgmma && shape.columns == 0) continue;
      SCOPED_TRACE(kernel == ProductKernel::kMma ? "mma" : "wgmma");
      floats.write(values);
      nans.write(std::vector<uint8_t>(kNanPlaces * 8));  // as nobody has begun a search
      const std::vector<uint16_t> expected = run(device.product, kernel, rows);
      const auto alone = [&](uint8_t* x) { return pad_product_x(shape, kernel, from, x, nullptr); };
      from.floats.begins = true;
      ASSERT_EQ(run_padded(device.product, kernel, m, 0, alone), expected);
      ASSERT_EQ(first_nan(), kNoNan);
      // A NaN in a launch that goes on is found, too, and the least of several.
      from.floats.begins = false;
      std::vector<float> with_nan = values;
      size_t least = values.size();
      for (int i = 0; i < 2; ++i) {
        const size_t at = of_floats.index(random_.between(0, m - 1), random_.between(0, k - 1));
        with_nan[skipped + at] = std::numeric_limits<float>::quiet_NaN();
        least = std::min(least, at);
      }
      floats.write(with_nan);
      for (const bool begins : {false, true}) {
        from.floats.begins = begins;
        static_cast<void>(run_padded(device.product, kernel, m, 0, alone));
        ASSERT_EQ(first_nan(), least) << (begins ? "begins" : "goes on");
      }
      if (kernel == ProductKernel::kMma) continue;
      ++wgmma_runs_;
      const auto run_beside = [&](bool of_x) {
        GuardedDeviceBuffer other(product_x_bytes(shape, m));
        const std::vector<uint16_t> result = run_padded(device.product, kernel, m, 0, [&](uint8_t* x) {
          auto* const beside = static_cast<uint8_t*>(other.data());
          return pad_product_x({&shape, from, of_x ? x : beside}, {&shape, from_codes, of_x ? beside : x}, nullptr);
        });
        static_cast<void>(other.read<uint8_t>());  // guards
        return result;
      };
      static_cast<void>(run_beside(true));
      ASSERT_EQ(first_nan(), least);
      floats.write(values);
      for (const bool of_x : {true, false}) {
        ASSERT_EQ(run_beside(of_x), expected) << (of_x ? "floats" : "codes beside them");
        ASSERT_EQ(first_nan(), kNoNan);
      }
    }
  };
  for (const int64_t m : {1, 17, 63, 65, 300, 2500})
    for (const int64_t k : {1, 16, 31, 100, 128, 129, 400, 700, 701, 1024})
      for (const int32_t planes : {1, 2}) {
        if (sanitized() && (m > 300 || !random_.one_in(8))) continue;
        check_case(m, 96, k, planes);
        if (HasFatalFailure()) return;
      }
  for (const int32_t planes : {1, 2}) {
    if (sanitized()) break;
    check_case(9000, 96, 1024, planes);  // a block has several stages
    if (HasFatalFailure()) return;
  }
  check_wgmma_ran();
}

TEST_F(CudaProduct, TilesThatDoNotFitAtOnceAreRefused) {
  Result<ProductPack<float>> pack = pack_product(random_weights<float>(random_, 192, 2048, 1));
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  pack->product.shape.tiles_at_once = 3;
  ProductRows rows;
  rows.rows = 1000;
  const Status status = launch_product(pack->product, ProductKernel::kOneTile, rows, nullptr, nullptr, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "product_one_tile: the device does not take the tiles of 1000 rows at once");
}

TEST_F(CudaProduct, KernelsAreChosenByRows) {
  const Result<ProductPack<float>> deep = pack_product(random_weights<float>(random_, 192, 2048, 1));
  const Result<ProductPack<float>> other = pack_product(random_weights<float>(random_, 384, 128, 1));
  ASSERT_TRUE(deep.ok() && other.ok());
  const ProductShape &of_deep = deep->product.shape, &of_other = other->product.shape;
  const bool has_wgmma = of_deep.columns > 0;
  EXPECT_EQ(of_deep.deep, has_wgmma);
  EXPECT_EQ(choose_product_kernel(of_deep, 1), has_wgmma ? ProductKernel::kOneTile : ProductKernel::kMma);
  EXPECT_EQ(choose_product_kernel(of_deep, 1 << 20), has_wgmma ? ProductKernel::kWgmma : ProductKernel::kMma);
  EXPECT_EQ(choose_product_kernel(of_other, 1), ProductKernel::kMma);
  EXPECT_EQ(choose_product_kernel(of_other, 1 << 20), has_wgmma ? ProductKernel::kWgmma : ProductKernel::kMma);
}

/// Needs no device.
TEST(CudaProductChoice, IsByDepthRowsAndPlanes) {
  const auto choose = [](int64_t k, int64_t rows, int32_t planes = 1) {
    ProductShape shape;
    shape.n = 3 * k;
    shape.k = k;
    shape.planes = planes;
    shape.tiles_at_once = 132;
    shape.deep = k > 640;
    shape.columns = shape.deep || planes == 1 ? 192 : 0;  // two planes have kWgmma from there on
    return choose_product_kernel(shape, rows);
  };
  EXPECT_EQ(choose(255, 511), ProductKernel::kMma);
  EXPECT_EQ(choose(255, 512), ProductKernel::kWgmma);
  EXPECT_EQ(choose(256, 511), ProductKernel::kOneTile);
  EXPECT_EQ(choose(256, 512), ProductKernel::kWgmma);
  EXPECT_EQ(choose(511, 512), ProductKernel::kWgmma);
  EXPECT_EQ(choose(512, 512), ProductKernel::kOneTile);
  EXPECT_EQ(choose(512, 4096), ProductKernel::kWgmma);  // more tiles than are on the device at once
  EXPECT_EQ(choose(640, 100, 2), ProductKernel::kMma);
  EXPECT_EQ(choose(641, 100, 2), ProductKernel::kOneTile);
}

/// The same.
TEST(CudaProductChoice, TilesAreAsNarrowAsAllFit) {
  ProductShape shape;
  shape.n = 3072;
  shape.tiles_at_once = 132;
  EXPECT_EQ(one_tile_columns(shape, 128), 48);   // 64
  EXPECT_EQ(one_tile_columns(shape, 256), 48);   // 2 x 64
  EXPECT_EQ(one_tile_columns(shape, 512), 96);   // 4 x 32
  EXPECT_EQ(one_tile_columns(shape, 513), 144);  // 6 x 22 = 132: a cluster has two blocks
  EXPECT_EQ(one_tile_columns(shape, 769), 0);    // 8 x 22
  shape.planes = 2;
  EXPECT_EQ(one_tile_columns(shape, 128), 48);
  EXPECT_EQ(one_tile_columns(shape, 256), 96);
  EXPECT_EQ(one_tile_columns(shape, 257), 144);
  shape.tiles_at_once = 0;
  EXPECT_EQ(one_tile_columns(shape, 1), 0);
}

}  // namespace
}  // namespace isobit::cuda
