// SPDX-License-Identifier: Apache-2.0
// GPTQ and AWQ checkpoints: docs/formats.md.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/float_mode.h"
#include "io/metadata.h"
#include "isobit/low_bit_import.h"
#include "low_bit/importers.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr std::string_view kFormatNames[] = {"gptq", "gptq_v2", "awq"};
// What only these checkpoints have; .scales alone may be anything.
constexpr std::string_view kSuffixes[] = {".qweight", ".qzeros"};
// What EETQ and SqueezeLLM have beside a .qweight of their own.
constexpr std::string_view kForeign[] = {".weight_scales", ".lookup_table"};
// AWQ: place i of a word holds column kAwqOrder[i] of the eight.
constexpr std::array<int64_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

// ---------------------------------------------------------------------------------------------------------------
// Tensors

class Importer {
 public:
  Importer(const std::map<std::string, Array>& arrays, const std::string& prefix, const CheckpointOptions& options,
           const std::string& name)
      : arrays_(arrays),
        prefix_(prefix),
        options_(options),
        name_(name),
        awq_(options.format == CheckpointFormat::kAwq) {}

  ImportedLowBit run() {
    check_options();
    set_form();
    set_permutation();
    allocate_low_bit(p_, scales_->dtype);
    fill_codes();
    fill_groups();
    const int64_t cleared = clear_zero_scales(p_);
    const std::optional<CheckpointFormat> suspected = simplify();
    Result<LowBitMatrix> matrix = LowBitMatrix::create(std::move(p_), name_ + ": matrix " + in_quotes(prefix_));
    if (!matrix.ok()) refuse_file(matrix.status().message());
    return {*std::move(matrix), std::move(permutation_), cleared, suspected};
  }

 private:
  [[nodiscard]] std::string tensor_text(const std::string& suffix) const {
    return name_ + ": tensor " + in_quotes(prefix_ + suffix);
  }
  [[nodiscard]] std::string options_text() const {
    return std::string(to_string(options_.format)) + ", " + std::to_string(options_.bits) + " bits, group " +
           std::to_string(options_.group);
  }

  void check_options() const {
    const int32_t bits = options_.bits;
    if (bits != 4 && (awq_ || (bits != 2 && bits != 8)))
      throw Refusal{{StatusCode::kUnsupported, name_ + ": " + std::string(to_string(options_.format)) + " of " +
                                                   std::to_string(bits) + " bits; imported are " +
                                                   (awq_ ? "4" : "2, 4 and 8")}};
    if (options_.group < 1 && options_.group != -1)
      refuse_argument(name_ + ": group is " + std::to_string(options_.group) + ", must be -1 (K) or at least 8");
  }

  const Array& tensor(const std::string& suffix) const {
    const auto found = arrays_.find(prefix_ + suffix);
    if (found == arrays_.end()) refuse_file(tensor_text(suffix) + " is missing");
    return found->second;
  }

  const int32_t* integers(const std::string& suffix, const std::vector<int64_t>& shape) const {
    const Array& array = tensor(suffix);
    if (array.dtype != Dtype::kS32)
      refuse_file(tensor_text(suffix) + " is " + std::string(to_string(array.dtype)) + ", must be s32");
    if (array.shape != shape)
      refuse_file(tensor_text(suffix) + " has the shape " + shape_text(array.shape) + ", must be " + shape_text(shape) +
                  " (" + options_text() + ")");
    return array.data<int32_t>();
  }

  /// Sizes from .qweight and .scales. All shapes are checked here: nothing is allocated from a size without its bytes.
  void set_form() {
    const Array& words = tensor(".qweight");
    scales_ = &tensor(".scales");
    for (const auto& [suffix, array] : {std::pair{".qweight", &words}, std::pair{".scales", scales_}})
      if (array->shape.size() != 2)
        refuse_file(tensor_text(suffix) + " has the shape " + shape_text(array->shape) + ", must have 2 dimensions");
    if (!is_low_bit_scale(scales_->dtype))
      refuse_file(tensor_text(".scales") + " is " + std::string(to_string(scales_->dtype)) +
                  ", must be f32, f16 or bf16");
    per_word_ = 32 / options_.bits;
    p_.kind = LowBitKind::kZeroPoint;
    p_.bits = options_.bits;
    p_.rows = scales_->shape[1];
    if (words.shape[0] > kMaxLowBitSize)
      refuse_file(tensor_text(".qweight") + " has the shape " + shape_text(words.shape) + ", beyond " +
                  std::to_string(kMaxLowBitSize) + " rows");
    p_.columns = words.shape[0] * (awq_ ? 1 : per_word_);
    p_.group = options_.group == -1 ? p_.columns : std::min(options_.group, p_.columns);
    if (const Status form = check_low_bit_form(p_.rows, p_.columns, p_.bits, p_.group, p_.kind,
                                               name_ + ": matrix " + in_quotes(prefix_));
        !form.ok())
      refuse_file(form.message());
    if (p_.rows % per_word_ != 0)
      refuse_file(tensor_text(".scales") + " has the shape " + shape_text(scales_->shape) + "; its columns must be a " +
                  "multiple of " + std::to_string(per_word_) + " (" + options_text() + ")");
    groups_ = low_bit_groups(p_.columns, p_.group);
    if (scales_->shape[0] != groups_)
      refuse_file(tensor_text(".scales") + " has the shape " + shape_text(scales_->shape) + ", must have " +
                  std::to_string(groups_) + " rows for K = " + std::to_string(p_.columns) + " (" + options_text() +
                  ")");
    const int64_t words_n = p_.rows / per_word_;
    words_ =
        awq_ ? integers(".qweight", {p_.columns, words_n}) : integers(".qweight", {p_.columns / per_word_, p_.rows});
    zeros_ = integers(".qzeros", {groups_, words_n});
  }

  /// place_[k]: the column that k becomes.
  void set_permutation() {
    place_.resize(static_cast<size_t>(p_.columns));
    std::iota(place_.begin(), place_.end(), 0);
    if (!arrays_.contains(prefix_ + ".g_idx")) return;
    if (awq_) refuse_file(tensor_text(".g_idx") + " is there, must not be: AWQ has groups of consecutive columns");
    const int32_t* group_of = integers(".g_idx", {p_.columns});
    std::vector<int64_t> counts(static_cast<size_t>(groups_));
    bool sorted = true;
    for (int64_t k = 0; k < p_.columns; ++k) {
      const int64_t g = group_of[k];
      if (g < 0 || g >= groups_)
        refuse_file(tensor_text(".g_idx") + ": element " + std::to_string(k) + " is " + std::to_string(g) +
                    ", must be 0.." + std::to_string(groups_ - 1));
      ++counts[static_cast<size_t>(g)];
      sorted = sorted && g == k / p_.group;
    }
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t expected = std::min(p_.group, p_.columns - g * p_.group);
      if (const int64_t count = counts[static_cast<size_t>(g)]; count != expected)
        refuse_file(tensor_text(".g_idx") + " names group " + std::to_string(g) + " " + std::to_string(count) +
                    " times, must be " + std::to_string(expected));
    }
    if (sorted) return;
    permutation_ = place_;
    std::stable_sort(permutation_.begin(), permutation_.end(),
                     [group_of](int32_t a, int32_t b) { return group_of[a] < group_of[b]; });
    for (size_t j = 0; j < permutation_.size(); ++j)
      place_[static_cast<size_t>(permutation_[j])] = static_cast<int32_t>(j);
  }

  void fill_codes() {
    const int64_t row_bytes = low_bit_row_bytes(p_.columns, p_.bits);
    const auto put = [&](int64_t n, int64_t k, uint32_t code) {
      pack_code(p_.codes.data<uint8_t>() + n * row_bytes, place_[static_cast<size_t>(k)], p_.bits, code);
    };
    if (awq_) {
      for (int64_t k = 0; k < p_.columns; ++k)
        for (int64_t n = 0; n < p_.rows; ++n) put(n, k, awq_code(words_ + k * p_.rows / per_word_, n));
      return;
    }
    for (int64_t k = 0; k < p_.columns; ++k)
      for (int64_t n = 0; n < p_.rows; ++n) put(n, k, code_in(words_[k / per_word_ * p_.rows + n], k % per_word_));
  }

  void fill_groups() {
    const uint32_t up = options_.format == CheckpointFormat::kGptq ? 1 : 0;
    const size_t size = size_in_bytes(scales_->dtype);
    for (int64_t g = 0; g < groups_; ++g)
      for (int64_t n = 0; n < p_.rows; ++n) {
        const int32_t* row = zeros_ + g * p_.rows / per_word_;
        const uint32_t z = awq_ ? awq_code(row, n) : code_in(row[n / per_word_], n % per_word_) + up;
        store_code(p_.zero_points.bytes.data(), p_.zero_points.dtype, n * groups_ + g, z);
        std::copy_n(scales_->bytes.data() + static_cast<size_t>(g * p_.rows + n) * size, size,
                    p_.scales.bytes.data() + static_cast<size_t>(n * groups_ + g) * size);
      }
  }

  [[nodiscard]] uint32_t code_in(int32_t word, int64_t place) const {
    return static_cast<uint32_t>(word) >> (place * p_.bits) & ((1U << p_.bits) - 1U);
  }
  [[nodiscard]] uint32_t awq_code(const int32_t* row, int64_t n) const {
    const auto* place = std::find(kAwqOrder.begin(), kAwqOrder.end(), n % 8);
    return code_in(row[n / 8], place - kAwqOrder.begin());
  }

  /// Symmetric, where every zero point says so. Returns the other format of GPTQ, if with that one each of them would.
  std::optional<CheckpointFormat> simplify() {
    const int32_t middle = 1 << (p_.bits - 1);
    const bool first = options_.format == CheckpointFormat::kGptq;
    const int64_t one_off = middle + (first ? 1 : -1);
    int64_t at_middle = 0, off = 0, odd = -1;  // `odd`: the first that is not in the middle
    const int64_t count = p_.rows * groups_;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t z = load_code(p_.zero_points.bytes.data(), p_.zero_points.dtype, i);
      at_middle += z == middle ? 1 : 0;
      off += z == one_off ? 1 : 0;
      if (odd < 0 && z != middle) odd = i;
    }
    if (at_middle == count) {
      p_.kind = LowBitKind::kSymmetric;
      p_.zero_points = {};
      return std::nullopt;
    }
    const bool suspected = !awq_ && off == count;
    if (options_.symmetric || (options_.symmetric_by_default && suspected))
      refuse_file(tensor_text(".qzeros") + ": the zero point of row " + std::to_string(odd / groups_) + ", group " +
                  std::to_string(odd % groups_) + " is " +
                  std::to_string(load_code(p_.zero_points.bytes.data(), p_.zero_points.dtype, odd)) + ", must be " +
                  std::to_string(middle) + " in a symmetric checkpoint; is its format " +
                  (first ? "gptq_v2?" : "gptq?"));
    if (!suspected) return std::nullopt;
    return first ? CheckpointFormat::kGptqV2 : CheckpointFormat::kGptq;
  }

  const std::map<std::string, Array>& arrays_;
  const std::string& prefix_;
  const CheckpointOptions& options_;
  const std::string& name_;
  const bool awq_;
  const Array* scales_ = nullptr;
  const int32_t *words_ = nullptr, *zeros_ = nullptr;
  LowBitParameters p_;
  int64_t groups_ = 0, per_word_ = 0;
  std::vector<int32_t> place_, permutation_;
};

// ---------------------------------------------------------------------------------------------------------------
// What files beside a checkpoint say. They hold much else, so unknown fields are ignored here.

[[noreturn]] void refuse_unsupported(const std::string& what) { throw Refusal{{StatusCode::kUnsupported, what}}; }

/// The first of `names` that is there and not null.
const Json* find_field(const Json& json, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto found = json.find(name); found != json.end() && !found->is_null()) return &*found;
  return nullptr;
}

/// A text in small letters, as messages and comparisons have it; of anything else what json_text() has.
std::string spelling(const Json& json) {
  if (!json.is_string()) return json_text(json);
  std::string text = json.get<std::string>();
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

int64_t small_integer(const Json* json, const char* name, const std::string& where) {
  if (json == nullptr) refuse_file(where + ": field '" + name + "' is missing");
  const bool too_large = json->is_number_unsigned() && json->get<uint64_t>() > static_cast<uint64_t>(kMaxLowBitSize);
  if (!json->is_number_integer() || too_large || json->get<int64_t>() < -1)
    refuse_file(where + ": field '" + name + "' is " + json_text(*json) + ", must be an integer in -1.." +
                std::to_string(kMaxLowBitSize));
  return json->get<int64_t>();
}

/// How a file says that the tensors are laid out.
struct SaidFormat {
  CheckpointFormat format = CheckpointFormat::kGptq;
  bool assumed = false;
  std::string words;      // "quant_method 'gptq'"
  std::string refusal{};  // why this is not imported; empty: it is
};

SaidFormat said_awq(const Json& json) {
  SaidFormat out{.format = CheckpointFormat::kAwq, .words = "AWQ"};
  const Json* layout = find_field(json, {"checkpoint_format", "format", "version"});
  if (layout != nullptr && spelling(*layout) != "gemm") {
    out.words = "AWQ layout " + in_quotes(spelling(*layout));
    out.refusal = out.words + "; imported is 'gemm'";
  } else if (const Json* zeros = find_field(json, {"zero_point"}); zeros != nullptr && *zeros == false) {
    out.words = "AWQ without zero points";
    out.refusal = out.words + "; imported are checkpoints with them";
  }
  return out;
}

SaidFormat said_gptq(const Json& json) {
  SaidFormat out{.assumed = true, .words = "GPTQ without a checkpoint_format"};
  for (const char* name : {"quant_method", "checkpoint_format", "format", "version"}) {
    const Json* field = find_field(json, {name});
    if (field == nullptr || (!out.assumed && name == std::string_view("version"))) continue;
    std::string text = spelling(*field);
    const std::string words = std::string(name) + " " + in_quotes(text);
    std::replace(text.begin(), text.end(), '-', '_');
    if (name == std::string_view("quant_method") && text != to_string(CheckpointFormat::kGptqV2)) continue;
    const std::optional<CheckpointFormat> format = checkpoint_format_from_string(text);
    if (!format || *format == CheckpointFormat::kAwq)
      return {.words = words, .refusal = words + "; imported are gptq and gptq_v2"};
    if (!out.assumed && *format != out.format) {
      const std::string both = out.words + " and " + words;
      return {.words = both, .refusal = both + " are two formats, must be one"};
    }
    out = {.format = *format, .words = words};
  }
  if (const Json* marlin = find_field(json, {"is_marlin_format"}); marlin != nullptr && *marlin == true)
    return {.words = "is_marlin_format",
            .refusal = "is_marlin_format is true, the layout of Marlin; imported are gptq and gptq_v2"};
  return out;
}

SaidFormat said_format(const Json& json) {
  const Json* method = find_field(json, {"quant_method"});
  const std::string name = method == nullptr ? "" : spelling(*method);
  if (name == "awq" || (method == nullptr && json.contains("w_bit"))) return said_awq(json);
  if (method == nullptr || name == "gptq" || name == "gptq_v2" || name == "gptq-v2") return said_gptq(json);
  const std::string words = "quant_method " + in_quotes(name);
  return {.words = words, .refusal = words + "; imported are gptq and awq"};
}

void set_format(const Json& json, const std::string& where, const CheckpointOverrides& overrides,
                CheckpointDescription& out) {
  const SaidFormat said = said_format(json);
  if (!overrides.format) {
    if (!said.refusal.empty()) refuse_unsupported(where + ": " + said.refusal);
    out.options.format = said.format;
    out.format_assumed = said.assumed;
    return;
  }
  out.options.format = *overrides.format;
  if (!said.refusal.empty() || (!said.assumed && said.format != *overrides.format)) out.overruled.push_back(said.words);
}

/// `override`, or else the field.
int64_t said_integer(const Json& json, std::initializer_list<const char*> names, const std::string& where,
                     std::optional<int64_t> override, CheckpointDescription& out) {
  const Json* field = find_field(json, names);
  const char* name = *names.begin();
  if (!override) return small_integer(field, name, where);
  if (field != nullptr && *field != *override) out.overruled.push_back(std::string(name) + " " + json_text(*field));
  return *override;
}

/// 'dynamic' of GPTQModel: "-:PATTERN" leaves modules as floats; "+:PATTERN", or PATTERN alone, gives fields of their
/// own to modules.
void check_dynamic(const Json& json, const std::string& where, CheckpointDescription& out) {
  const Json* dynamic = find_field(json, {"dynamic"});
  if (dynamic == nullptr || dynamic->empty()) return;
  const auto refuse = [&where](const std::string& what) {
    refuse_unsupported(where + ": 'dynamic' gives layers " + what + "; imported is one width for all");
  };
  if (!dynamic->is_object()) refuse("widths of their own");
  for (const auto& [pattern, rule] : dynamic->items()) {
    if (pattern.starts_with("-:")) continue;
    if (!rule.is_object()) refuse("widths of their own (" + in_quotes(pattern) + ")");
    const auto check = [&, &fields = rule, &modules = pattern](const char* name, const Json& same) {
      if (const Json* field = find_field(fields, {name}); field != nullptr && *field != same)
        refuse("a '" + std::string(name) + "' of their own (" + in_quotes(modules) + ": " + json_text(*field) + ")");
    };
    check("bits", out.options.bits);
    check("group_size", out.options.group);
    for (const char* name : {"quant_method", "checkpoint_format", "format", "pack_dtype"})
      if (const Json* same = find_field(json, {name}); same != nullptr) check(name, *same);
    if (const Json* symmetric = find_field(rule, {"sym"}); symmetric != nullptr && *symmetric == false)
      out.options.symmetric = out.options.symmetric_by_default = false;
  }
}

CheckpointDescription description_of(const Json& json, const std::string& where, const CheckpointOverrides& overrides) {
  CheckpointDescription out;
  set_format(json, where, overrides, out);
  if (const Json* type = find_field(json, {"pack_dtype"}); type != nullptr && *type != "int32")
    refuse_unsupported(where + ": pack_dtype is " + json_text(*type) + "; imported is int32");
  out.options.bits = static_cast<int32_t>(said_integer(json, {"bits", "w_bit"}, where, overrides.bits, out));
  out.options.group = said_integer(json, {"group_size", "q_group_size"}, where, overrides.group, out);
  if (out.options.format != CheckpointFormat::kAwq && !overrides.format) {
    const Json* symmetric = find_field(json, {"sym"});
    out.options.symmetric = symmetric != nullptr && *symmetric == true;
    out.options.symmetric_by_default = symmetric == nullptr;
  }
  check_dynamic(json, where, out);
  return out;
}

std::optional<CheckpointDescription> describe_text(std::string_view text, bool whole_model, const std::string& where,
                                                   const CheckpointOverrides& overrides) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse_file(where + ": is not a JSON object");
  const Json* description = whole_model ? find_field(json, {"quantization_config"}) : &json;
  if (description == nullptr) return std::nullopt;
  if (!description->is_object()) refuse_file(where + ": 'quantization_config' is not a JSON object");
  CheckpointDescription out = description_of(*description, where, overrides);
  out.source = where;
  return out;
}

std::optional<CheckpointDescription> describe_file(const std::filesystem::path& path, bool whole_model,
                                                   const CheckpointOverrides& overrides) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  const Result<std::vector<std::byte>> content = read_file(path.string());
  if (!content.ok()) throw Refusal{content.status()};
  return describe_text({reinterpret_cast<const char*>(content->data()), content->size()}, whole_model, path.string(),
                       overrides);
}

/// As AutoGPTQ leaves it, which has no fields for the format and for symmetry.
std::optional<CheckpointDescription> describe_metadata(const std::string& path,
                                                       const std::map<std::string, std::string>& metadata,
                                                       const CheckpointOverrides& overrides) {
  if (!metadata.contains("gptq_bits") || !metadata.contains("gptq_group_size")) return std::nullopt;
  Json json = Json::object();
  for (const auto& [key, name] : {std::pair{"gptq_bits", "bits"}, std::pair{"gptq_group_size", "group_size"}}) {
    const std::string& text = metadata.at(key);
    int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size())
      refuse_file(path + ": metadata '" + key + "' is " + in_quotes(text) + ", must be an integer");
    json[name] = value;
  }
  if (const auto marlin = metadata.find("gptq_is_marlin_format"); marlin != metadata.end())
    json["is_marlin_format"] = marlin->second == "True";
  CheckpointDescription out = description_of(json, path + ": metadata", overrides);
  out.source = path;
  return out;
}

}  // namespace

std::string_view to_string(CheckpointFormat format) { return kFormatNames[static_cast<size_t>(format)]; }

std::optional<CheckpointFormat> checkpoint_format_from_string(std::string_view text) {
  for (size_t i = 0; i < std::size(kFormatNames); ++i)
    if (kFormatNames[i] == text) return static_cast<CheckpointFormat>(i);
  return std::nullopt;
}

Result<std::optional<CheckpointDescription>> find_checkpoint_description(
    const std::string& path, const std::map<std::string, std::string>& metadata, const CheckpointOverrides& overrides) {
  auto said = without_refusal(path, [&]() -> Result<std::optional<CheckpointDescription>> {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    for (const std::string_view file : kCheckpointDescriptionFiles)
      if (auto found = describe_file(folder / file, file == "config.json", overrides)) return found;
    return describe_metadata(path, metadata, overrides);
  });
  const bool says_all = overrides.format && overrides.bits && overrides.group;
  if (!says_all || (said.ok() && *said)) return said;
  CheckpointDescription out;
  out.options = {.format = *overrides.format, .bits = *overrides.bits, .group = *overrides.group};
  if (!said.ok()) out.overruled.push_back(said.status().message());
  return std::optional(std::move(out));
}

Result<std::optional<CheckpointDescription>> parse_checkpoint_description(std::string_view text, bool whole_model,
                                                                          const std::string& where) {
  return without_refusal(where, [&]() -> Result<std::optional<CheckpointDescription>> {
    return describe_text(text, whole_model, where, {});
  });
}

std::vector<std::string> list_checkpoint_matrices(const std::map<std::string, Array>& arrays) {
  std::set<std::string> prefixes;
  for (const auto& [name, array] : arrays)
    for (const std::string_view suffix : kSuffixes)
      if (name.size() > suffix.size() && name.ends_with(suffix)) {
        const std::string prefix = name.substr(0, name.size() - suffix.size());
        const bool foreign = std::any_of(std::begin(kForeign), std::end(kForeign), [&](std::string_view other) {
          return arrays.contains(prefix + std::string(other));
        });
        if (!foreign) prefixes.insert(prefix);
      }
  return {prefixes.begin(), prefixes.end()};
}

Status claim_checkpoint(const std::string& path, const std::string& what, FileClaims& files) {
  ISOBIT_RETURN_IF_ERROR(files.reads(path, what));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const std::string_view name : kCheckpointDescriptionFiles)
    ISOBIT_RETURN_IF_ERROR(files.reads((folder / name).string(), "beside " + what));
  return {};
}

std::vector<std::string> checkpoint_parts(const std::map<std::string, Array>& arrays, const std::string& prefix) {
  std::vector<std::string> names;
  for (const char* suffix : {".qweight", ".qzeros", ".scales", ".g_idx"})
    if (arrays.contains(prefix + suffix)) names.push_back(prefix + suffix);
  return names;
}

std::string checkpoint_text(const CheckpointDescription& description) {
  const CheckpointOptions& options = description.options;
  const std::string group = options.group == -1 ? "K" : std::to_string(options.group);
  std::string text = std::string(to_string(options.format)) + (description.format_assumed ? " (assumed)" : "") + ", " +
                     std::to_string(options.bits) + " bits, group " + group + ", as ";
  if (description.source.empty()) text += kCheckpointOptionsSay;
  if (!description.source.empty() && description.overruled.empty()) text += description.source + " says";
  if (description.overruled.empty()) return text;
  text += description.source.empty() ? "; overruled: " : "options say; " + description.source + " says otherwise: ";
  for (size_t i = 0; i < description.overruled.size(); ++i) text += (i > 0 ? ", " : "") + description.overruled[i];
  return text;
}

std::string checkpoint_refusal(const Status& status, const std::string& path,
                               const std::map<std::string, std::string>& metadata) {
  const bool format_will_do = find_checkpoint_description(path, metadata, {.format = CheckpointFormat::kGptq}).ok();
  return status.message() + "; isobit pack --checkpoint-format gptq, gptq_v2 or awq" +
         (format_will_do ? "" : " with --bits and --group") + " overrules that";
}

Result<ImportedLowBit> import_checkpoint(const std::map<std::string, Array>& arrays, const std::string& prefix,
                                         const CheckpointOptions& options, const std::string& name) {
  const DefaultFloatMode mode;
  return without_refusal(name,
                         [&]() -> Result<ImportedLowBit> { return Importer(arrays, prefix, options, name).run(); });
}

}  // namespace isobit
