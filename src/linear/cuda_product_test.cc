// SPDX-License-Identifier: Apache-2.0
// Both kernels of the product against a loop on the host, byte for byte.
#include "linear/cuda_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/random.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using isobit::testing::GuardedDeviceBuffer;

/// Smaller under compute-sanitizer, which is slow.
bool sanitized() { return std::getenv("ISOBIT_SANITIZED") != nullptr; }

/// Results on both sides of the limits and between them; every fourth matrix has the largest sums that there are.
ProductWeights random_weights(Random& random, int64_t n, int64_t k) {
  ProductWeights weights;
  weights.n = n;
  weights.k = k;
  weights.w.resize(static_cast<size_t>(n * k));
  const bool extreme = random.one_in(4);
  for (int64_t row = 0; row < n; ++row)
    for (int64_t i = 0; i < k; ++i)
      weights.w[static_cast<size_t>(row * k + i)] =
          static_cast<int8_t>(extreme ? (row % 2 == 0 ? -128 : 127) : random.between(-128, 127));
  const bool wide = random.one_in(2);
  weights.low = wide ? -32768.0f : -100.0f;
  weights.high = wide ? 32767.0f : 155.0f;
  const float typical = std::ldexp(1.0f, 13) * std::sqrt(static_cast<float>(k));  // of a sum
  for (int64_t row = 0; row < n; ++row) {
    const auto uniform = [&] { return static_cast<float>(random.between(1, 1 << 20)) * 0x1p-20f; };
    weights.start.push_back(static_cast<int32_t>(random.between(-(1 << 18), 1 << 18)));
    weights.ratio.push_back(1.5f * weights.high / typical * uniform());
    weights.again.push_back(wide ? uniform() : 200.0f * uniform());
  }
  return weights;
}

struct Rows {
  std::vector<uint8_t> codes;  // as in memory
  ProductRows at;              // its pointer is set by run()
};

/// `batch` sequences; rows of codes with `gap` more bytes between them.
Rows random_rows(Random& random, int64_t rows, int64_t batch, int64_t k, int64_t gap) {
  Rows result;
  result.at.rows = rows;
  result.at.batch = batch;
  result.at.sequence = k + gap;
  result.at.step = batch * (k + gap);
  result.at.flip = random.one_in(2) ? 0x80 : 0;
  result.codes.resize(static_cast<size_t>((rows + batch - 1) / batch * result.at.step));
  const bool extreme = random.one_in(4);
  for (uint8_t& code : result.codes)
    code = extreme ? static_cast<uint8_t>(0xff ^ result.at.flip) : static_cast<uint8_t>(random.next() >> 56);
  return result;
}

/// The weights on the device.
struct OnDevice {
  explicit OnDevice(const ProductPack& pack)
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
    product.w = static_cast<const int8_t*>(w.data());
    product.start = static_cast<const int32_t*>(start.data());
    product.ratio = static_cast<const float*>(ratio.data());
    product.again = static_cast<const float*>(again.data());
    product.image = static_cast<const uint8_t*>(image.data());
  }
  template <typename T>
  static int64_t bytes_of(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
  }
  GuardedDeviceBuffer w, start, ratio, again, image;
  DeviceProduct product;
};

std::vector<uint16_t> run(const DeviceProduct& product, ProductKernel kernel, const Rows& rows) {
  GuardedDeviceBuffer codes(static_cast<int64_t>(rows.codes.size()));
  GuardedDeviceBuffer x(product_x_bytes(product, rows.at.rows));
  GuardedDeviceBuffer out(rows.at.rows * product.n * 2);
  codes.write(rows.codes);
  ProductRows from = rows.at;
  from.codes = static_cast<const uint8_t*>(codes.data());
  auto* const padded = static_cast<uint8_t*>(x.data());
  const Status pad = pad_product_x(product, kernel, from, padded, nullptr);
  EXPECT_TRUE(pad.ok()) << pad.message();
  const Status launch =
      launch_product(product, kernel, padded, rows.at.rows, static_cast<uint16_t*>(out.data()), nullptr);
  EXPECT_TRUE(launch.ok()) << launch.message();
  const cudaError_t error = cudaDeviceSynchronize();
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  static_cast<void>(x.read<uint8_t>());  // guards
  return out.read<uint16_t>();
}

uint16_t expected(const ProductWeights& weights, const Rows& rows, int64_t m, int64_t n) {
  const uint8_t* x = rows.codes.data() + m / rows.at.batch * rows.at.step + m % rows.at.batch * rows.at.sequence;
  const int8_t* w = weights.w.data() + n * weights.k;
  const auto row = static_cast<size_t>(n);
  int64_t sum = weights.start[row];
  for (int64_t k = 0; k < weights.k; ++k) sum += int64_t{w[k]} * static_cast<uint8_t>(x[k] ^ rows.at.flip);
  // Products of two floats are exact in double.
  const double value = std::nearbyint(static_cast<double>(static_cast<float>(sum)) * double{weights.ratio[row]});
  const double clamped = std::clamp(value, double{weights.low}, double{weights.high});
  return static_cast<uint16_t>(static_cast<int32_t>(std::nearbyint(clamped * double{weights.again[row]})) + 32768);
}

class CudaProduct : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }

  /// Clusters: at most so many at once, so that each has many tiles; 0: as the device has room.
  void compare(int64_t m, int64_t n, int64_t k, int32_t clusters = 0) {
    const ProductWeights weights = random_weights(random_, n, k);
    const Rows rows =
        random_rows(random_, m, random_.between(1, 70), k, random_.one_in(2) ? 0 : random_.between(0, 20));
    Result<ProductPack> pack = pack_product(weights);
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    if (clusters > 0) pack->product.clusters = std::min(pack->product.clusters, clusters);
    const OnDevice device(*pack);
    const std::string what = "m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " + std::to_string(k) +
                             ", columns " + std::to_string(device.product.columns) + ", stages " +
                             std::to_string(device.product.stages) + ", cluster " +
                             std::to_string(device.product.cluster);
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
    if (device.product.columns == 0) return;
    const std::vector<uint16_t> wgmma = run(device.product, ProductKernel::kWgmma, rows);
    ASSERT_EQ(wgmma.size(), mma.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < mma.size(); ++i)
      if (wgmma[i] != mma[i] && wrong++ < 8)
        ADD_FAILURE() << "row " << static_cast<int64_t>(i) / n << ", column " << static_cast<int64_t>(i) % n << ": "
                      << wgmma[i] << ", must be " << mma[i];
    ASSERT_EQ(wrong, 0) << "of " << mma.size();
    ++wgmma_runs_;
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

  Random random_{20260101};
  int64_t wgmma_runs_ = 0;
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

TEST_F(CudaProduct, LargeShapes) {
  if (sanitized()) GTEST_SKIP() << "the other tests have its cases";
  compare(65536, 1536, 512);
  compare(40001, 3072, 1024);
  compare(16384, 768, 256);
  compare(30000, 1152, 384);
  check_wgmma_ran();
}

TEST_F(CudaProduct, ManyRowsChooseWgmma) {
  const ProductWeights weights = random_weights(random_, 384, 128);
  const Result<ProductPack> pack = pack_product(weights);
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  EXPECT_EQ(choose_product_kernel(pack->product, 1), ProductKernel::kMma);
  EXPECT_EQ(choose_product_kernel(pack->product, 1 << 20),
            pack->product.columns > 0 ? ProductKernel::kWgmma : ProductKernel::kMma);
}

}  // namespace
}  // namespace isobit::cuda
