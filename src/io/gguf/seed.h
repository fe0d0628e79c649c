// SPDX-License-Identifier: Apache-2.0
// A small GGUF file for tests and fuzz targets. There is no writer of GGUF: it is written out here, one matrix for
// every type that is read.
#ifndef ISOBIT_IO_GGUF_SEED_H_
#define ISOBIT_IO_GGUF_SEED_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "isobit/gguf.h"

namespace isobit {

struct GgufSeedTensor {
  uint32_t type, elements, bytes;
};
inline constexpr GgufSeedTensor kGgufSeedTensors[] = {{0, 2, 8},      {1, 2, 4},      {30, 2, 4},     {2, 32, 18},
                                                      {3, 32, 20},    {6, 32, 22},    {7, 32, 24},    {8, 32, 34},
                                                      {10, 256, 84},  {11, 256, 110}, {12, 256, 144}, {13, 256, 176},
                                                      {14, 256, 210}, {20, 32, 18},   {35, 256, 66}};
inline constexpr uint64_t kGgufSeedAlignment = 32;

/// Matrices of one row, named by the number of their type, all of whose bytes are `fill`.
inline std::vector<std::byte> gguf_seed_file(std::byte fill = std::byte{0x11}) {
  std::vector<std::byte> out;
  const auto number = [&out](uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
  };
  const auto text = [&](const char* content) {
    number(std::strlen(content), 8);
    for (; *content != 0; ++content) out.push_back(static_cast<std::byte>(*content));
  };
  text("GGUF");
  out.erase(out.begin(), out.begin() + 8);
  number(3, 4);
  number(std::size(kGgufSeedTensors), 8);
  number(3, 8);
  text("general.alignment");
  number(static_cast<uint32_t>(GgufValueType::kU32), 4);
  number(kGgufSeedAlignment, 4);
  text("name");
  number(static_cast<uint32_t>(GgufValueType::kString), 4);
  text("seed");
  text("list");
  number(static_cast<uint32_t>(GgufValueType::kArray), 4);
  number(static_cast<uint32_t>(GgufValueType::kString), 4);
  number(2, 8);
  text("a");
  text("b");
  uint64_t offset = 0;
  for (const GgufSeedTensor& tensor : kGgufSeedTensors) {
    text(std::to_string(tensor.type).c_str());
    number(2, 4);
    number(tensor.elements, 8);
    number(1, 8);
    number(tensor.type, 4);
    number(offset, 8);
    offset += (tensor.bytes + kGgufSeedAlignment - 1) / kGgufSeedAlignment * kGgufSeedAlignment;
  }
  out.resize((out.size() + kGgufSeedAlignment - 1) / kGgufSeedAlignment * kGgufSeedAlignment + offset, fill);
  return out;
}

}  // namespace isobit

#endif  // ISOBIT_IO_GGUF_SEED_H_
