// SPDX-License-Identifier: Apache-2.0
// There is no writer of GGUF: the seed is written out here, one tensor for every type that is read.
#include "io/fuzz.h"
#include "isobit/gguf.h"

namespace {

constexpr struct {
  uint32_t type, elements, bytes;
} kTensors[] = {{0, 2, 8},   {1, 2, 4},     {30, 2, 4},     {2, 32, 18},    {3, 32, 20},
                {8, 32, 34}, {10, 256, 84}, {12, 256, 144}, {14, 256, 210}, {35, 256, 66}};
constexpr uint64_t kAlignment = 32;

std::vector<std::byte> seed_file() {
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
  number(std::size(kTensors), 8);
  number(3, 8);
  text("general.alignment");
  number(static_cast<uint32_t>(isobit::GgufValueType::kU32), 4);
  number(kAlignment, 4);
  text("name");
  number(static_cast<uint32_t>(isobit::GgufValueType::kString), 4);
  text("seed");
  text("list");
  number(static_cast<uint32_t>(isobit::GgufValueType::kArray), 4);
  number(static_cast<uint32_t>(isobit::GgufValueType::kString), 4);
  number(2, 8);
  text("a");
  text("b");
  uint64_t offset = 0;
  for (const auto& tensor : kTensors) {
    text(std::to_string(tensor.type).c_str());
    number(1, 4);
    number(tensor.elements, 8);
    number(tensor.type, 4);
    number(offset, 8);
    offset += (tensor.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment + offset, std::byte{0x11});
  return out;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const auto valid_file = seed_file();
  return isobit::fuzz_mutate(data, size, max_size, seed, valid_file);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto valid_file = seed_file();
  isobit::fuzz_require(isobit::parse_gguf(valid_file.data(), valid_file.size(), "seed").ok());
  const isobit::Result<isobit::GgufFile> file = isobit::GgufFile::view(data, size, "fuzz");
  const isobit::Result<isobit::ArrayFile> arrays = isobit::parse_gguf(data, size, "fuzz");
  if (!file.ok()) {
    isobit::fuzz_require(!arrays.ok());
    return 0;
  }
  for (const isobit::GgufTensor& tensor : file->tensors()) {
    const isobit::Result<isobit::Array> array = file->read(tensor.name);
    if (!array.ok()) continue;
    isobit::fuzz_require_consistent(*array);
    isobit::fuzz_require(array->shape == tensor.shape);
    isobit::fuzz_require(!arrays.ok() || arrays->arrays.at(tensor.name) == *array);
  }
  return 0;
}
