// SPDX-License-Identifier: Apache-2.0
// Every row of kernels.inc against the reference, byte for byte.
#include "product/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "product/reference.h"
#include "testing/guarded_bytes.h"
#include "testing/required.h"

namespace isobit {
namespace {

using isobit::testing::GuardedBytes;
using isobit::testing::required;

struct Row {
  const char* name;
  CpuPath path;
  LinearKernel kernel;
};

const Row kRows[] = {
#define ISOBIT_LINEAR_KERNEL(name, path) {#name, CpuPath::path, name},
#include "product/kernels.inc"
#undef ISOBIT_LINEAR_KERNEL
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

enum class Values { kRandom, kLargest, kSmallest };

template <typename T>
struct Product {
  int64_t m, n, k;
  Dtype dtype;
  int32_t weight_low, weight_high;
  Values values;

  std::string text() const {
    return "m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k) + " " +
           std::string(to_string(dtype)) + " weights [" + std::to_string(weight_low) + ", " +
           std::to_string(weight_high) + "] values=" + std::to_string(static_cast<int>(values)) + " -> " +
           std::string(to_string(dtype_of<T>()));
  }

  /// Runs pack, kernel and reference; compares the columns and looks for writes outside padded_n.
  void check(CpuPath path) const {
    SCOPED_TRACE(text());
    std::mt19937 random(static_cast<uint32_t>(m * 7919 + n * 131 + k));  // the seed is in the text
    std::vector<int32_t> weights(static_cast<size_t>(n * k));
    const uint32_t span = static_cast<uint32_t>(weight_high - weight_low) + 1;
    for (int32_t& w : weights) {
      w = values == Values::kLargest    ? weight_high
          : values == Values::kSmallest ? weight_low
                                        : weight_low + static_cast<int32_t>(random() % span);
    }
    const int64_t code_bytes = k * static_cast<int64_t>(size_in_bytes(dtype));
    std::vector<uint16_t> storage(static_cast<size_t>(m * k + 1));  // aligned for 16-bit codes
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(storage.data());
    for (uint16_t& pair : storage) pair = static_cast<uint16_t>(random());
    if (values != Values::kRandom)  // u at its largest for either extreme of the weights
      for (int64_t i = 0; i < m * k; ++i)
        store_code(storage.data(), dtype, i, (int64_t{1} << (8 * size_in_bytes(dtype))) - 1 - storage_offset(dtype));

    const LinearKernel kernel = linear_kernel(path);
    ASSERT_NE(kernel, nullptr);
    Result<PackedWeights> packed = pack_weights(weights.data(), n, k);
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    ASSERT_EQ(packed->padded_n(), (n + 15) / 16 * 16);
    const int64_t row_bytes = packed_row_bytes(dtype, k);
    const GuardedBytes activations(m * row_bytes);
    for (int64_t row = 0; row < m; ++row)
      pack_activations_row(codes + row * code_bytes, dtype, k, activations.data() + row * row_bytes);

    const int64_t padded = packed->padded_n();
    const int64_t stride = padded + 3;  // rows of acc are not aligned
    const GuardedBytes start_memory(padded * static_cast<int64_t>(sizeof(T)));
    T* start = reinterpret_cast<T*>(start_memory.data());
    for (int64_t i = 0; i < padded; ++i) start[i] = static_cast<T>(static_cast<int32_t>(random()));
    const int64_t acc_count = m == 0 ? 0 : (m - 1) * stride + padded;
    const GuardedBytes acc_memory(acc_count * static_cast<int64_t>(sizeof(T)));
    T* acc = reinterpret_cast<T*>(acc_memory.data());
    const T canary = static_cast<T>(0x5A5A5A5A5A5A5A5A);
    std::fill_n(acc, acc_count, canary);
    const int planes = activation_planes(dtype);
    linear(kernel, *packed, packed->all_blocks(), {activations.data(), row_bytes, planes, m}, start, acc, stride);

    std::vector<T> expected(static_cast<size_t>(m * n));
    reference_linear_product(weights.data(), storage.data(), dtype, m, n, k, start, expected.data());
    const auto compare = [&] {
      for (int64_t row = 0; row < m; ++row) {
        for (int64_t col = 0; col < n; ++col)
          ASSERT_EQ(acc[row * stride + col], expected[static_cast<size_t>(row * n + col)])
              << "at " << row << ", " << col;
        for (int64_t col = padded; col < stride && row + 1 < m; ++col)
          ASSERT_EQ(acc[row * stride + col], canary) << "written beyond padded_n at " << row << ", " << col;
      }
    };
    compare();
    if (::testing::Test::HasFatalFailure() || !takes_tiles(kernel, *packed, m)) return;

    const GuardedBytes tiles(round_up_to_tile(m) * row_bytes);
    for (int64_t row = 0; row < m; ++row)
      pack_activations_row(codes + row * code_bytes, dtype, k, tiles.data() + tiled_row_at(row, row_bytes), kTileBytes);
    for (int64_t rows = m; rows > 0; rows -= 23) {  // a part of a call may have fewer rows than a tile
      SCOPED_TRACE(std::to_string(rows) + " rows of tiles");
      const ActivationRows u{tiles.data(), row_bytes, 1, rows, true};
      std::fill_n(acc, acc_count, canary);
      linear(kernel, *packed, packed->all_blocks(), u, start, acc, stride);
      for (int64_t row = rows; row < m; ++row) std::copy_n(expected.data() + row * n, n, acc + row * stride);
      compare();
      std::fill_n(acc, acc_count, canary);
      const auto copy = [&](const LinearSums& sums) {
        for (int64_t row = 0; row < sums.rows; ++row)
          for (int64_t col = 0; col < sums.columns; ++col) {
            T& to = acc[(sums.m + row) * stride + sums.n + col];
            ASSERT_EQ(to, canary) << "once more " << sums.m + row << ", " << sums.n + col;
            to = static_cast<const T*>(sums.acc)[row * sums.stride + col];
          }
      };
      const auto call = [](const void* to, const LinearSums& sums) { (*static_cast<decltype(&copy)>(to))(sums); };
      linear<T>(kernel, *packed, packed->all_blocks(), u, start, nullptr, 0, true, {call, &copy});
      for (int64_t row = rows; row < m; ++row) std::copy_n(expected.data() + row * n, n, acc + row * stride);
      compare();
    }
  }
};

void check_both(CpuPath path, int64_t m, int64_t n, int64_t k, Dtype dtype, int32_t low, int32_t high,
                Values values = Values::kRandom) {
  Product<int32_t>{m, n, k, dtype, low, high, values}.check(path);
  Product<int64_t>{m, n, k, dtype, low, high, values}.check(path);
}

class Linear : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    const CpuPath path = GetParam().path;
    if (cpu_can_run(path)) return;
    ASSERT_FALSE(required(path)) << "ISOBIT_REQUIRE names " << to_string(path) << ": " << cpu_cannot_run_reason(path);
    GTEST_SKIP() << cpu_cannot_run_reason(path);
  }
};

TEST_P(Linear, EveryWidthOfRegisterTile) {
  for (const int64_t m : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33}) {
    for (const int64_t n :
         {0, 1, 15, 16, 17, 31, 33, 47, 48, 49, 64, 80, 97, 112, 127, 144, 160, 176, 191, 192, 193, 209, 389}) {
      check_both(GetParam().path, m, n, 13, Dtype::kU8, -128, 127);
      check_both(GetParam().path, m, n, 9, Dtype::kU16, -128, 127);
    }
  }
}

TEST_P(Linear, EveryRemainderOfK) {
  for (const int64_t k : {0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 17, 31, 63, 64, 65, 127, 128, 251}) {
    for (const int64_t m : {1, 2, 5}) {
      for (const int64_t n : {16, 53}) {
        for (const Dtype dtype : {Dtype::kS8, Dtype::kU8, Dtype::kS16, Dtype::kU16})
          check_both(GetParam().path, m, n, k, dtype, -128, 127);
      }
    }
  }
}

/// From 16 rows and 61 columns on, linear_u8_s8_amx multiplies tiles of 16 x 16 x 64, of rows or of tiles.
TEST_P(Linear, ManyRows) {
  for (const int64_t m : {15, 16, 17, 31, 32, 33, 47, 48, 64, 70})
    for (const int64_t k : {60, 61, 64, 65, 127, 128, 200})
      for (const int64_t n : {16, 33, 53, 240}) {
        check_both(GetParam().path, m, n, k, Dtype::kS8, -128, 127);
        if (n == 53) check_both(GetParam().path, m, n, k, Dtype::kU8, -32768, 65535);  // sums added to those before
      }
  for (const Values values : {Values::kLargest, Values::kSmallest})
    check_both(GetParam().path, 18, 17, kMaxLinearK, Dtype::kU8, -128, 127, values);
}

TEST_P(Linear, PlanesOfWeights) {
  const std::pair<int32_t, int32_t> ranges[] = {{-128, 127}, {0, 255}, {-32768, 32639}, {-32768, 32767}, {0, 65535}};
  for (const auto& [low, high] : ranges) {
    for (const Dtype dtype : {Dtype::kS8, Dtype::kU8, Dtype::kS16, Dtype::kU16}) {
      for (const int64_t m : {1, 4, 9}) {
        check_both(GetParam().path, m, 50, 37, dtype, low, high);
        check_both(GetParam().path, m, 50, 37, dtype, low, high, Values::kLargest);
        check_both(GetParam().path, m, 50, 37, dtype, low, high, Values::kSmallest);
      }
    }
  }
}

TEST_P(Linear, LongestK) {  // the sum of a plane reaches -2^31 + 128
  for (const Values values : {Values::kLargest, Values::kSmallest}) {
    check_both(GetParam().path, 2, 17, kMaxLinearK, Dtype::kU8, -128, 127, values);
    check_both(GetParam().path, 1, 17, kMaxLinearK, Dtype::kU16, -32768, 32767, values);
  }
}

// What the GRU asks for: blocks of whole groups of three tiles, run one at a time in any order.
TEST_P(Linear, BlocksOneAtATime) {
  const LinearKernel kernel = linear_kernel(GetParam().path);
  for (const int32_t max_tiles : {3, 5, 6, 9, 12}) {
    for (const int64_t n : {48, 96, 144, 240, 336}) {
      const int64_t k = 21;
      const int64_t m = 3;
      std::mt19937 random(static_cast<uint32_t>(n * 13 + max_tiles));
      std::vector<int32_t> weights(static_cast<size_t>(n * k));
      for (int32_t& w : weights) w = static_cast<int32_t>(random() % 1024) - 512;  // two planes
      std::vector<uint8_t> codes(static_cast<size_t>(m * k));
      for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
      std::vector<int32_t> start(static_cast<size_t>(n));
      for (int32_t& s : start) s = static_cast<int32_t>(random());
      const int64_t row_bytes = packed_row_bytes(Dtype::kU8, k);
      std::vector<uint8_t> rows(static_cast<size_t>(m * row_bytes));
      for (int64_t r = 0; r < m; ++r)
        pack_activations_row(codes.data() + r * k, Dtype::kU8, k, rows.data() + r * row_bytes);
      const Result<PackedWeights> packed = pack_weights(weights.data(), n, k, 3, max_tiles);
      ASSERT_TRUE(packed.ok()) << packed.status().message();
      ASSERT_EQ(packed->padded_n(), n);
      std::vector<int32_t> acc(static_cast<size_t>(m * n));
      int64_t seen = 0;
      for (int32_t block = packed->all_blocks().end - 1; block >= 0; --block) {
        const int64_t first = packed->first_row(block);
        const int64_t rows_of_block = packed->first_row(block + 1) - first;
        EXPECT_EQ(rows_of_block % 48, 0);
        EXPECT_LE(rows_of_block, 16 * max_tiles);
        seen += rows_of_block;
        linear(kernel, *packed, {block, block + 1}, {rows.data(), row_bytes, 1, m}, start.data() + first,
               acc.data() + first, n);
      }
      EXPECT_EQ(seen, n);
      std::vector<int32_t> expected(static_cast<size_t>(m * n));
      reference_linear_product(weights.data(), codes.data(), Dtype::kU8, m, n, k, start.data(), expected.data());
      EXPECT_EQ(acc, expected) << "n " << n << " max_block_tiles " << max_tiles;
    }
  }
}

// Pieces overlap, lie at odd addresses, and end where the memory ends.
TEST_P(Linear, RowsInPieces) {
  std::mt19937 random(11);
  for (const int64_t m : {1, 3, 8, 21})
    for (const int64_t pieces : {1, 3, 7})
      for (const int64_t quads : {1, 2, 5, 16, 18})
        for (const Dtype dtype : {Dtype::kU8, Dtype::kU16}) {
          SCOPED_TRACE("m " + std::to_string(m) + ", " + std::to_string(pieces) + " pieces of " +
                       std::to_string(quads) + " quads, " + std::string(to_string(dtype)));
          const int64_t n = 37, k = pieces * quads * 4;
          const int planes = activation_planes(dtype);
          const int64_t plane = 4 * quads + 2000;
          const GuardedBytes memory(planes * plane);
          for (int64_t i = 0; i < planes * plane; ++i) memory.data()[i] = static_cast<uint8_t>(random());
          std::vector<int64_t> row_at(static_cast<size_t>(m)), piece_at(static_cast<size_t>(pieces));
          for (int64_t& at : row_at) at = 1000 + static_cast<int64_t>(random() % 1001);
          for (int64_t& at : piece_at) at = -static_cast<int64_t>(random() % 1001);
          row_at[0] = 2000, piece_at[0] = 0;
          std::vector<uint16_t> codes;
          for (const int64_t row : row_at)
            for (const int64_t piece : piece_at)
              for (int64_t i = 0; i < 4 * quads; ++i) {
                const uint8_t* const at = memory.data() + row + piece + i;
                codes.push_back(static_cast<uint16_t>(at[0] + (planes == 2 ? at[plane] << 8 : 0)));
              }
          std::vector<int32_t> weights(static_cast<size_t>(n * k));
          for (int32_t& w : weights) w = static_cast<int32_t>(random() % 256) - 128;
          const Result<PackedWeights> made = pack_weights(weights.data(), n, k);
          ASSERT_TRUE(made.ok()) << made.status().message();
          const PackedWeights& packed = *made;
          const std::vector<int64_t> start(static_cast<size_t>(packed.padded_n()), -3);
          std::vector<int64_t> acc(static_cast<size_t>(m * packed.padded_n()));
          const ActivationRows u{.data = memory.data(),
                                 .stride_bytes = 0,
                                 .planes = planes,
                                 .m = m,
                                 .row_at = row_at.data(),
                                 .piece_at = piece_at.data(),
                                 .pieces = pieces,
                                 .plane_stride_bytes = plane};
          linear(GetParam().kernel, packed, packed.all_blocks(), u, start.data(), acc.data(), packed.padded_n());
          std::vector<int64_t> expected(static_cast<size_t>(m * n));
          reference_linear_product(weights.data(), codes.data(), Dtype::kU16, m, n, k, start.data(), expected.data());
          for (int64_t row = 0; row < m; ++row)
            for (int64_t i = 0; i < n; ++i)
              ASSERT_EQ(acc[static_cast<size_t>(row * packed.padded_n() + i)],
                        expected[static_cast<size_t>(row * n + i)])
                  << row << ", " << i;
        }
}

// The weights that a kernel reads end at a page that cannot be touched: PackedWeights owns its memory, so the
// kernel is called directly here.
TEST_P(Linear, ReadsNoByteBeyondTheWeights) {
  for (const int64_t tiles : {1, 2, 3, 5, 9, 12}) {
    for (const int64_t m : {1, 2, 3, 8, 16, 35}) {
      for (const int64_t quads : {1, 2, 5, 16, 37}) {
        const int64_t stride = packed_plane_bytes(4 * quads);
        const int64_t bytes = tiles * kTileRows * quads * 4;
        const GuardedBytes weights(bytes);
        std::memset(weights.data(), 0x80, static_cast<size_t>(bytes));  // -128
        const GuardedBytes activations(m * stride);
        std::memset(activations.data(), 0xFF, static_cast<size_t>(m * stride));
        std::vector<int32_t> start(static_cast<size_t>(tiles * kTileRows), 5);
        std::vector<int32_t> acc(static_cast<size_t>(m * tiles * kTileRows));
        LinearArgs args{};
        args.weights = reinterpret_cast<const int8_t*>(weights.data());
        args.quads = quads;
        args.pieces = 1;
        args.piece_quads = quads;
        args.wide_blocks = 1;
        args.wide_tiles = static_cast<int32_t>(tiles);
        args.activation_planes = 1;
        args.activations = activations.data();
        args.row_stride_bytes = stride;
        args.m = m;
        args.start = start.data();
        args.acc = acc.data();
        args.acc_stride = tiles * kTileRows;
        GetParam().kernel(args);
        for (const int32_t value : acc) ASSERT_EQ(value, 5 - 255 * 128 * 4 * quads);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Linear, ::testing::ValuesIn(kRows),
                         [](const ::testing::TestParamInfo<Row>& row) { return std::string(row.param.name); });

TEST(PackActivations, PiecesOfRows) {
  std::mt19937 random(5);
  for (const int64_t k : {0, 1, 15, 16, 63, 64, 65, 127, 128, 200})
    for (const Dtype dtype : {Dtype::kS8, Dtype::kU8})
      for (const int64_t stride : {kTileColumns, kTileBytes})
        for (const bool at_end : {false, true}) {  // aligned, and at an odd address where k is odd
          SCOPED_TRACE(std::string(to_string(dtype)) + ", k " + std::to_string(k) + ", " + std::to_string(stride));
          const GuardedBytes codes(k, at_end);
          for (int64_t i = 0; i < k; ++i) codes.data()[i] = static_cast<uint8_t>(random());
          const int64_t pieces = (k + kTileColumns - 1) / kTileColumns;
          const GuardedBytes out(pieces == 0 ? 0 : (pieces - 1) * stride + kTileColumns, at_end);
          const std::vector<uint8_t> before(out.data(), out.data() + out.bytes().size());
          pack_activations_row(codes.data(), dtype, k, out.data(), stride);
          EXPECT_TRUE(out.untouched_around());
          for (int64_t i = 0; i < static_cast<int64_t>(before.size()); ++i) {
            const int64_t in_piece = i % stride;
            const int64_t at = i / stride * kTileColumns + in_piece;
            const uint8_t u = at >= k ? 0 : static_cast<uint8_t>(codes.data()[at] + storage_offset(dtype));
            ASSERT_EQ(out.data()[i], in_piece < kTileColumns ? u : before[static_cast<size_t>(i)]) << "byte " << i;
          }
        }
}

TEST(PackWeights, RefusesByName) {
  const std::vector<int32_t> weights = {0, 65536, -32769};
  const auto message = [&](const int32_t* w, int64_t n, int64_t k) { return pack_weights(w, n, k).status().message(); };
  EXPECT_NE(message(weights.data(), 1, 2).find("weights[0, 1] is 65536"), std::string::npos);
  EXPECT_NE(message(weights.data() + 2, 1, 1).find("-32769"), std::string::npos);
  EXPECT_NE(message(weights.data(), 1, kMaxLinearK + 1).find("65794"), std::string::npos);
  EXPECT_NE(message(weights.data(), -1, 1).find("n is -1"), std::string::npos);
  EXPECT_NE(pack_weights(weights.data(), 1, 1, 0).status().message().find("tiles_together is 0"), std::string::npos);
  EXPECT_NE(pack_weights(weights.data(), 1, 1, 13).status().message().find("tiles_together is 13"), std::string::npos);
  EXPECT_NE(pack_weights(weights.data(), 1, 1, 3, 2).status().message().find("max_block_tiles is 2"),
            std::string::npos);
  EXPECT_NE(pack_weights(weights.data(), 1, 1, 3, 13).status().message().find("max_block_tiles is 13"),
            std::string::npos);
  EXPECT_NE(pack_weights(weights.data(), 1, 1, 3).status().message().find("multiple of 48"), std::string::npos);
  EXPECT_EQ(linear_kernel(CpuPath::kReference), nullptr);
}

TEST(PackWeights, CountsPlanes) {
  const auto planes = [](int32_t w) { return pack_weights(&w, 1, 1)->planes(); };
  EXPECT_EQ(planes(127), 1);
  EXPECT_EQ(planes(-128), 1);
  EXPECT_EQ(planes(128), 2);
  EXPECT_EQ(planes(-129), 2);
  EXPECT_EQ(planes(-32768), 2);
  EXPECT_EQ(planes(32639), 2);
  EXPECT_EQ(planes(32640), 3);
  EXPECT_EQ(planes(65535), 3);
}

}  // namespace
}  // namespace isobit
