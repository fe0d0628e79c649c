// SPDX-License-Identifier: Apache-2.0
// Mutations of saved models and tables. Most keep the container and the JSON text well-formed, else nearly every input
// would be refused at its first byte.
#ifndef ISOBIT_IO_FUZZ_SAVED_H_
#define ISOBIT_IO_FUZZ_SAVED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "io/fuzz.h"
#include "isobit/arrays.h"

namespace isobit {

using Json = nlohmann::json;
using Bytes = std::vector<std::byte>;

/// Mutates `bytes` as libFuzzer would; their number changes only if `resize`.
inline void mutate_bytes(Bytes& bytes, bool resize) {
  const size_t size = bytes.size();
  const size_t limit = resize ? size + 64 : size;
  if (limit == 0) return;
  bytes.resize(limit);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, limit));
  if (!resize) bytes.resize(size);
}

inline int64_t interesting_number(Random& random, const Json& old) {
  const int64_t now = old.is_number_integer() ? old.get<int64_t>() : 0;
  switch (random.between(0, 4)) {
    case 0: return now > INT64_MIN ? now - 1 : now;
    case 1: return now < INT64_MAX ? now + 1 : now;
    case 2: return random.between(-2, 34);  // widths and shifts that are valid
    case 3: return random.between(0, 1) == 0 ? INT64_MIN : INT64_MAX;
    default: {
      const int64_t power = int64_t{1} << random.between(0, 61);
      return random.between(-power, power);
    }
  }
}

/// Changes, copies or removes one value somewhere in the JSON text.
inline void mutate_json(Random& random, std::string& text) {
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return;
  std::vector<Json*> leaves;
  std::vector<Json*> containers;
  const auto walk = [&](const auto& self, Json& value) -> void {
    if (!value.is_structured()) return leaves.push_back(&value);
    if (!value.empty()) containers.push_back(&value);
    for (Json& child : value) self(self, child);
  };
  walk(walk, root);
  const auto pick = [&random](const auto& list) {
    return list[static_cast<size_t>(random.between(0, static_cast<int64_t>(list.size()) - 1))];
  };
  if (leaves.empty() || containers.empty()) return;
  if (random.one_in(8)) {
    Json& container = *pick(containers);
    auto item = container.begin();
    std::advance(item, random.between(0, static_cast<int64_t>(container.size()) - 1));
    if (container.is_array() && random.one_in(2)) {
      const Json copy = *item;
      container.push_back(copy);
    } else {
      container.erase(item);
    }
  } else if (Json& leaf = *pick(leaves); leaf.is_boolean()) {
    leaf = !leaf.get<bool>();
  } else if (leaf.is_string()) {
    const Json copy = *pick(leaves);  // another field's words and numbers
    leaf = copy.is_string() ? copy : Json(std::to_string(interesting_number(random, leaf)));
  } else if (const Json copy = *pick(leaves); copy.is_number() && random.one_in(3)) {
    leaf = copy;
  } else {
    leaf = interesting_number(random, leaf);
  }
  text = root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

inline void mutate_array(Random& random, std::map<std::string, Array>& arrays) {
  if (arrays.empty()) return;
  auto item = std::next(arrays.begin(), random.between(0, static_cast<int64_t>(arrays.size()) - 1));
  Array& array = item->second;
  switch (random.between(0, 9)) {
    case 0: arrays.erase(item); break;
    case 1: array = Array::zeros(array.dtype, {random.between(0, 40)}); break;
    case 2:
      array = Array::zeros(static_cast<Dtype>(random.between(0, static_cast<int64_t>(Dtype::kF64))), array.shape);
      break;
    case 3:  // an extreme in one element
      if (!array.bytes.empty()) {
        const size_t size = size_in_bytes(array.dtype);
        const auto at = static_cast<size_t>(random.between(0, array.size() - 1)) * size;
        const std::byte fill = random.one_in(2) ? std::byte{0xff} : std::byte{0};
        std::fill_n(array.bytes.begin() + static_cast<ptrdiff_t>(at), size, fill);
        array.bytes[at + size - 1] = random.one_in(2) ? std::byte{0x7f} : std::byte{0x80};
      }
      break;
    default: mutate_bytes(array.bytes, /*resize=*/false); break;
  }
}

/// Nothing if the input is no safetensors file.
inline std::optional<Bytes> mutate_saved_file(Random& random, const uint8_t* data, size_t size) {
  Result<ArrayFile> file = parse_safetensors(data, size, "mutator");
  if (!file.ok()) return std::nullopt;
  const int64_t changes = random.between(1, 3);
  for (int64_t i = 0; i < changes; ++i) {
    if (random.one_in(2)) {
      mutate_json(random, file->metadata["isobit"]);
    } else {
      mutate_array(random, file->arrays);
    }
  }
  Result<Bytes> encoded = encode_safetensors(*file, "mutator");
  if (!encoded.ok()) return std::nullopt;
  return *std::move(encoded);
}

/// A libFuzzer custom mutator: now and then a seed, mostly a mutation that keeps the file well-formed.
inline size_t mutate_saved(const std::vector<Bytes>& seeds, uint8_t* data, size_t size, size_t max_size,
                           unsigned seed) {
  Random random(seed);
  if (size < 8 || random.one_in(16)) {
    const Bytes& file = seeds[random.next() % seeds.size()];
    fuzz_require(file.size() <= max_size);  // the test's -max_len
    std::copy_n(reinterpret_cast<const uint8_t*>(file.data()), file.size(), data);
    size = file.size();
  }
  if (!random.one_in(8)) {
    const std::optional<Bytes> mutated = mutate_saved_file(random, data, size);
    if (mutated && mutated->size() <= max_size) {
      std::copy_n(reinterpret_cast<const uint8_t*>(mutated->data()), mutated->size(), data);
      return mutated->size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

}  // namespace isobit

#endif  // ISOBIT_IO_FUZZ_SAVED_H_
