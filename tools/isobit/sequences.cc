// SPDX-License-Identifier: Apache-2.0
#include "sequences.h"

#include <cmath>
#include <utility>

#include "data.h"
#include "text.h"

namespace isobit::tool {
namespace {

// So many times more sequences than steps are seldom meant.
constexpr int64_t kOddRatio = 8;

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

/// The array of a file that belongs to one of the data: the only one, or that of its name.
Result<const Array*> array_for(const ArrayFile& file, const std::string& path, const std::string& option,
                               const Sequences& data) {
  if (file.arrays.size() == 1) return &file.arrays.begin()->second;
  const auto found = file.arrays.find(data.array);
  if (found != file.arrays.end()) return &found->second;
  return invalid(option + " " + path + ": has no array \"" + data.array + "\" for " + data.name +
                 "; give one array for all of the data, or one of the same name for each");
}

Result<std::vector<int64_t>> lengths_of(const Array& array, const std::string& label, const Sequences& data,
                                        int64_t batch, int64_t steps) {
  const std::vector<int64_t> wanted = {batch};
  if (array.shape != wanted) {
    return invalid(label + " has the shape " + shape_text(array.shape) + "; " + data.name +
                   " needs [N] = " + shape_text(wanted));
  }
  std::vector<int64_t> lengths;
  for (const float value : array.to_float()) {
    if (!(value >= 0) || value > static_cast<float>(steps) || value != std::floor(value)) {
      return invalid(label +
                     format("[%zu] is %g; expected a whole number from 0 to %lld, the steps of ", lengths.size(),
                            static_cast<double>(value), static_cast<long long>(steps)) +
                     data.name);
    }
    lengths.push_back(static_cast<int64_t>(value));
  }
  return lengths;
}

}  // namespace

Result<SequenceFiles> SequenceFiles::open(const std::vector<std::string>& data, const std::string& option,
                                          const SequenceOptions& options, int64_t channels, FileClaims& claims) {
  SequenceFiles out;
  out.options_ = options;
  out.channels_ = channels;
  ISOBIT_ASSIGN_OR_RETURN(out.files_, find_data_files(data, option, claims));
  if (!options.lengths.empty()) {
    ISOBIT_RETURN_IF_ERROR(claims.reads(options.lengths, "--lengths"));
    ISOBIT_ASSIGN_OR_RETURN(out.lengths_, load_arrays(options.lengths));
  }
  if (!options.state.empty()) {
    ISOBIT_RETURN_IF_ERROR(claims.reads(options.state, "--state"));
    ISOBIT_ASSIGN_OR_RETURN(out.state_, load_arrays(options.state));
    for (const auto& [name, array] : out.state_.arrays) {
      if (is_float(array.dtype)) continue;
      return invalid("--state " + array_label(options.state, name) + " has the dtype " +
                     std::string(to_string(array.dtype)) +
                     "; the float model needs floats [layers * directions, N, H], not codes");
    }
  }
  return out;
}

Status SequenceFiles::for_each(const std::function<Status(const GruSequences&, const std::string& name)>& use) const {
  const auto use_array = [&](const Sequences& data) -> Status {
    GruSequences out;
    out.batch_first = options_.batch_first && !data.single;
    out.steps = out.batch_first ? data.batch : data.steps;
    out.batch = out.batch_first ? data.steps : data.batch;
    out.x = data.x;
    std::vector<int64_t> lengths;
    std::vector<float> h0;
    if (!options_.lengths.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(const Array* array, array_for(lengths_, options_.lengths, "--lengths", data));
      ISOBIT_ASSIGN_OR_RETURN(lengths, lengths_of(*array, "--lengths " + options_.lengths, data, out.batch, out.steps));
      out.lengths = lengths;
    }
    if (!options_.state.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(const Array* array, array_for(state_, options_.state, "--state", data));
      h0 = array->to_float();
      out.h0 = h0;
    }
    const Status status = use(out, data.name);
    return status.ok() ? status : Status(status.code(), data.name + ": " + status.message());
  };
  for (const std::string& file : files_) ISOBIT_RETURN_IF_ERROR(for_each_array(file, channels_, use_array));
  return {};
}

Result<SequenceFiles::Extents> SequenceFiles::extents() const {
  Extents out;
  ISOBIT_RETURN_IF_ERROR(for_each([&](const GruSequences& data, const std::string& name) -> Status {
    out.sequences += data.batch;
    for (int64_t n = 0; n < data.batch; ++n) {
      out.steps += data.lengths.empty() ? data.steps : data.lengths[static_cast<size_t>(n)];
    }
    if (out.hint.empty() && !options_.batch_first && data.batch >= kOddRatio * data.steps) {
      out.hint = name + " has " + count_text(data.batch, "sequence") + " of " + count_text(data.steps, "step") +
                 " as [T, N, C]; if it is [N, T, C], give --batch-first";
    }
    return {};
  }));
  return out;
}

}  // namespace isobit::tool
