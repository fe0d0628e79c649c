// SPDX-License-Identifier: Apache-2.0
// consumer FOLDER: uses what needs each library behind isobit: Boost (tables), libzip (npz) and threads. Prints the
// sigmoid of 0 as an 8-bit code; exit status 1 if anything is not as it should be.
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "isobit/arrays.h"
#include "isobit/parallel.h"
#include "isobit/table.h"

namespace {

isobit::Status check(const std::string& folder) {
  isobit::Grid input;
  input.shift = 4;
  isobit::Grid output;
  output.is_signed = false;
  output.shift = 8;
  ISOBIT_ASSIGN_OR_RETURN(
      const isobit::ActivationTable table,
      isobit::fit_table(isobit::Activation::kSigmoid, input, output, {}, isobit::Rounding::kNearestEven));

  std::array<int32_t, 256> codes{};
  isobit::ThreadPool pool(2);
  pool.for_ranges(256, [&](int /*part*/, int64_t begin, int64_t end) {
    for (int64_t q = begin; q < end; ++q) codes[static_cast<size_t>(q)] = static_cast<int32_t>(table(q - 128));
  });

  const std::string path = folder + "/sigmoid.npz";
  ISOBIT_RETURN_IF_ERROR(isobit::save_npz(path, {{"codes", isobit::Array::copy_of(codes.data(), {256})}}));
  ISOBIT_ASSIGN_OR_RETURN(const isobit::ArrayFile file, isobit::load_arrays(path));
  const int32_t* loaded = file.arrays.at("codes").data<int32_t>();
  std::printf("%d\n", static_cast<int>(loaded[128]));
  // sigmoid(0) = 1/2, sigmoid(-8) * 256 = 0.086, sigmoid(7.9375) * 256 = 255.9 and clamped to 255.
  if (loaded[128] != 128 || loaded[0] != 0 || loaded[255] != 255) {
    return {isobit::StatusCode::kInvalidFile, "the table's codes are wrong"};
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const isobit::Status status = check(argc > 1 ? argv[1] : ".");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
