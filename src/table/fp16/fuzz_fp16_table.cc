// SPDX-License-Identifier: Apache-2.0
// The loader of saved FP16 tables. An accepted table must be what it says: every code has a result, and saving it
// again gives a file that is read to the same table.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "io/fuzz_saved.h"
#include "isobit/fp16_table.h"

namespace isobit {
namespace {

Bytes saved(const Fp16Table& table) {
  static const std::string path = "/tmp/isobit_fuzz_table." + std::to_string(::getpid());
  fuzz_require(save_fp16_table(path, table).ok());
  Result<Bytes> bytes = read_file(path);
  fuzz_require(bytes.ok() && std::remove(path.c_str()) == 0);
  return *std::move(bytes);
}

/// A plain table, one with two pieces, one with float16 values.
std::vector<Bytes> seed_files() {
  std::vector<Bytes> files;
  for (const char* function : {"relu", "sin", "exp"}) {
    const auto reduction = function == std::string("sin") ? Fp16Reduction::kSin : Fp16Reduction::kNone;
    Fp16Table table;
    table.function = function;
    table.reduction = reduction;
    table.half_values = function == std::string("exp");
    for (int piece = 0; piece < (reduction == Fp16Reduction::kSin ? 2 : 1); ++piece) {
      Fp16Pieces pieces{{1, 4, 1}, {-1.0f, -0.5f, 0.5f, 1.0f}, {}, {0.0f, 0.0f, 0.25f, 0.5f, 0.5f, 0.75f, 1.0f}};
      set_scales(pieces, table.model);
      table.pieces.push_back(std::move(pieces));
    }
    files.push_back(saved(table));
  }
  return files;
}

}  // namespace
}  // namespace isobit

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<isobit::Bytes> seeds = isobit::seed_files();
  return isobit::mutate_saved(seeds, data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const isobit::Result<isobit::Fp16Table> table = isobit::parse_fp16_table(data, size, "fuzz");
  if (!table.ok()) {
    isobit::fuzz_require(!table.status().message().empty());
    return 0;
  }
  for (uint32_t x = 0; x < 65536; x += 7) (void)(*table)(static_cast<uint16_t>(x));
  const isobit::Bytes again = isobit::saved(*table);
  const isobit::Result<isobit::Fp16Table> loaded = isobit::parse_fp16_table(again.data(), again.size(), "again");
  isobit::fuzz_require(loaded.ok() && isobit::saved(*loaded) == again);
  return 0;
}
