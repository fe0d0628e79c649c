// SPDX-License-Identifier: Apache-2.0
// ONNX models in memory: the arrays, and the GRUs that are made of them. Most mutations keep the messages well-formed,
// else nearly every input would be refused at its first byte.
#include <protozero/pbf_reader.hpp>
#include <string>
#include <vector>

#include "core/random.h"
#include "io/fuzz.h"
#include "io/onnx/seed.h"
#include "isobit/gru.h"

namespace isobit {
namespace {

constexpr int kMaxDepth = 6;  // of messages in messages; the seed has 5

struct Field {
  uint32_t number = 0;
  protozero::pbf_wire_type type = protozero::pbf_wire_type::varint;
  uint64_t value = 0;  // of a number
  std::string bytes;
};

/// Nothing if the bytes are no message.
std::vector<Field> split(const std::string& message) {
  std::vector<Field> fields;
  try {
    for (protozero::pbf_reader reader(message); reader.next();) {
      Field& field = fields.emplace_back();
      field.number = reader.tag();
      field.type = reader.wire_type();
      switch (field.type) {
        case protozero::pbf_wire_type::varint: field.value = reader.get_uint64(); break;
        case protozero::pbf_wire_type::fixed64: field.value = reader.get_fixed64(); break;
        case protozero::pbf_wire_type::fixed32: field.value = reader.get_fixed32(); break;
        default: field.bytes = reader.get_string();
      }
    }
  } catch (const protozero::exception&) {
    fields.clear();
  }
  return fields;
}

std::string join(const std::vector<Field>& fields) {
  return onnx::message([&fields](onnx::Writer& writer) {
    for (const Field& field : fields) {
      switch (field.type) {
        case protozero::pbf_wire_type::varint: writer.add_uint64(field.number, field.value); break;
        case protozero::pbf_wire_type::fixed64: writer.add_fixed64(field.number, field.value); break;
        case protozero::pbf_wire_type::fixed32:
          writer.add_fixed32(field.number, static_cast<uint32_t>(field.value));
          break;
        default: writer.add_bytes(field.number, field.bytes);
      }
    }
  });
}

void mutate_bytes(std::string& bytes) {
  const size_t size = bytes.size();
  bytes.resize(size + 16);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
}

uint64_t mutated_number(Random& random, uint64_t value) {
  switch (random.between(0, 3)) {
    case 0: return value + 1;
    case 1: return value - 1;
    case 2: return static_cast<uint64_t>(random.between(-2, 20));
    default: return uint64_t{1} << random.between(0, 63);
  }
}

/// Changes, copies, moves or removes a field, at any depth.
std::string mutate_message(Random& random, const std::string& message, int depth) {
  std::vector<Field> fields = split(message);
  if (fields.empty()) {
    std::string bytes = message;
    mutate_bytes(bytes);
    return bytes;
  }
  const auto pick = [&] { return static_cast<size_t>(random.between(0, std::ssize(fields) - 1)); };
  const size_t at = pick();
  Field& field = fields[at];
  if (random.one_in(16)) {
    fields.erase(fields.begin() + static_cast<ptrdiff_t>(at));
  } else if (random.one_in(16)) {
    const Field copy = field;
    fields.insert(fields.begin() + static_cast<ptrdiff_t>(pick()), copy);
  } else if (random.one_in(16)) {
    std::swap(field, fields[pick()]);
  } else if (random.one_in(16)) {
    field.number = static_cast<uint32_t>(random.between(1, 14));
  } else if (random.one_in(8)) {  // the name or the elements of another one
    field.bytes = fields[pick()].bytes;
  } else if (field.type != protozero::pbf_wire_type::length_delimited) {
    field.value = mutated_number(random, field.value);
  } else if (depth < kMaxDepth && !random.one_in(8)) {
    field.bytes = mutate_message(random, field.bytes, depth + 1);
  } else {
    mutate_bytes(field.bytes);
  }
  return join(fields);
}

}  // namespace
}  // namespace isobit

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::string valid_file = isobit::onnx::seed_model().text();
  isobit::Random random(seed);
  isobit::fuzz_require(valid_file.size() <= max_size);  // the test's -max_len
  std::string text(reinterpret_cast<const char*>(data), size);
  if (size < 8 || random.one_in(32)) text = valid_file;
  if (random.one_in(8)) {
    isobit::mutate_bytes(text);
  } else {
    for (int64_t i = random.between(1, 3); i > 0; --i) text = isobit::mutate_message(random, text, 1);
  }
  if (text.size() > max_size) text.resize(max_size);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  isobit::fuzz_require_readable(data, size);
  const auto reader = isobit::ArrayReader::view(data, size, "fuzz");
  if (!reader.ok() || reader->kind() != isobit::FileKind::kOnnx) return 0;
  const auto candidates = isobit::find_grus(*reader);
  isobit::fuzz_require(candidates.ok());
  for (const isobit::GruCandidate& candidate : *candidates) {
    const auto weights = isobit::load_gru(*reader, {.prefix = candidate.prefix});
    isobit::fuzz_require(candidate.is_gru || !weights.ok());
    isobit::fuzz_require(!weights.ok() || isobit::check_weights(*weights).ok());
  }
  return 0;
}
