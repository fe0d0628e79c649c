// SPDX-License-Identifier: Apache-2.0
// Integer tables on a device against ActivationTable, every code of every table.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/codes.h"
#include "isobit/cuda/table.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using isobit::testing::GuardedDeviceBuffer;

class DeviceTables : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

Grid grid_of(int bits, bool is_signed, int shift, int64_t zero_point = 0) {
  Grid grid;
  grid.bits = bits;
  grid.is_signed = is_signed;
  grid.shift = shift;
  grid.zero_point = zero_point;
  return grid;
}

std::vector<std::byte> all_codes(const Grid& grid) {
  std::vector<std::byte> codes(static_cast<size_t>(grid.max() - grid.min() + 1) * size_in_bytes(grid.dtype()));
  for (int64_t q = grid.min(); q <= grid.max(); ++q) store_code(codes.data(), grid.dtype(), q - grid.min(), q);
  return codes;
}

TEST_F(DeviceTables, EqualTheReferenceAtEveryCode) {
  int64_t compared = 0;
  int tables = 0;
  for (const char* kind : {"direct", "interpolated", "segments:2", "segments:16", "segments:256"}) {
    for (const Rounding rounding :
         {Rounding::kNearestEven, Rounding::kNearestUp, Rounding::kNearestAway, Rounding::kFloor}) {
      for (const Grid& input : {grid_of(8, true, 5), grid_of(8, false, 4, 100), grid_of(12, true, 8, -77),
                                grid_of(16, true, 12), grid_of(16, false, 11, 30000)}) {
        for (const Activation function : {Activation::kSigmoid, Activation::kTanh}) {
          const bool is_signed = function == Activation::kTanh;
          for (const int bits : {6, 8, 16}) {
            const Grid output = grid_of(bits, is_signed, bits - (is_signed ? 1 : 0));
            SCOPED_TRACE(std::string(kind) + " " + std::string(to_string(rounding)) + " " +
                         std::string(to_string(function)) + " " + std::to_string(input.bits) + " to " +
                         std::to_string(bits) + " bits");
            if (input.bits == 16 && rounding != Rounding::kNearestEven && bits != 16) continue;  // half a minute
            const Result<ActivationTable> table =
                fit_table(function, input, output, parse_table_options(kind).value(), rounding);
            ASSERT_TRUE(table.ok()) << table.status().message();
            const Result<DeviceTable> device = DeviceTable::create(*table);
            ASSERT_TRUE(device.ok()) << device.status().message();
            const std::vector<std::byte> x = all_codes(input);
            const int64_t count = input.max() - input.min() + 1;
            const auto y_bytes = count * static_cast<int64_t>(size_in_bytes(output.dtype()));
            GuardedDeviceBuffer x_device(static_cast<int64_t>(x.size()));
            GuardedDeviceBuffer y_device(y_bytes);
            x_device.write(x);
            const Status status = device->forward(x_device.bytes(), input.dtype(), y_device.bytes(), output.dtype());
            ASSERT_TRUE(status.ok()) << status.message();
            const std::vector<std::byte> y = y_device.read<std::byte>();
            for (int64_t i = 0; i < count; ++i)
              ASSERT_EQ(load_code(y.data(), output.dtype(), i), (*table)(input.min() + i))
                  << "code " << input.min() + i;
            compared += count;
            ++tables;
          }
        }
      }
    }
  }
  std::printf("%d tables, %lld codes compared, 0 different\n", tables, static_cast<long long>(compared));
  EXPECT_GT(compared, 2'000'000);
}

TEST_F(DeviceTables, RefusesByName) {
  const Result<ActivationTable> table =
      fit_table(Activation::kTanh, grid_of(8, true, 5), grid_of(16, true, 15), {}, Rounding::kNearestEven);
  ASSERT_TRUE(table.ok());
  ActivationTable damaged = *table;
  damaged.entries.pop_back();
  EXPECT_FALSE(DeviceTable::create(damaged).ok());
  const Result<DeviceTable> device = DeviceTable::create(*table);
  ASSERT_TRUE(device.ok());
  GuardedDeviceBuffer x(16);
  GuardedDeviceBuffer y(32);
  const auto expect = [](const Status& status, const char* part) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  expect(device->forward(x.bytes(), Dtype::kU8, y.bytes(), Dtype::kS16),
         "x u8 and y s16, must be codes: x s8 and y s16");
  expect(device->forward(x.bytes(), Dtype::kS8, y.bytes(), Dtype::kS16, {.kernel = "direct"}),
         "options.kernel is set, which means nothing to a table on a device");
  expect(device->forward(x.bytes(), Dtype::kS8, y.bytes().first(31), Dtype::kS16),
         "y has 31 bytes, must be whole elements of 2 bytes");
  expect(device->forward(x.bytes(), Dtype::kS8, y.bytes().first(30), Dtype::kS16),
         "y has 15 elements, must have 16, as x");
  expect(device->forward(x.bytes().first(4), Dtype::kS8, y.bytes().subspan(1, 8), Dtype::kS16), "y is not aligned");
  expect(device->forward(y.bytes().first(4), Dtype::kS8, y.bytes().first(8), Dtype::kS16), "y overlaps x, must not");
}

}  // namespace
}  // namespace isobit::cuda
