// SPDX-License-Identifier: Apache-2.0
#include "sequences.h"

#include <filesystem>
#include <system_error>
#include <utility>

namespace isobit::tool {

Result<SequenceFiles> SequenceFiles::open(const std::vector<std::string>& data, const std::string& option,
                                          const SequenceOptions& options, int64_t channels, FileClaims& claims) {
  SequenceFiles out;
  out.batch_first_ = options.batch_first;
  out.channels_ = channels;
  ISOBIT_ASSIGN_OR_RETURN(out.files_, find_data_files(data, option, claims));
  for (const std::string& file : out.files_) {
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error)) continue;
    ISOBIT_ASSIGN_OR_RETURN(ArrayReader reader, ArrayReader::open(file));
    out.pipes_.emplace(file, std::move(reader));
  }
  if (!options.lengths.empty()) ISOBIT_RETURN_IF_ERROR(claims.reads(options.lengths, options.lengths_option));
  if (!options.state.empty()) ISOBIT_RETURN_IF_ERROR(claims.reads(options.state, options.state_option));
  ISOBIT_ASSIGN_OR_RETURN(out.lengths_, Companion::load(options.lengths_option, options.lengths));
  ISOBIT_ASSIGN_OR_RETURN(out.state_, Companion::load(options.state_option, options.state));
  return out;
}

Status SequenceFiles::for_each(const Use& use, std::vector<std::string>& warnings) const {
  const auto use_array = [&](const Sequences& data) -> Status {
    GruSequences out;
    out.steps = data.steps;
    out.batch = data.batch;
    out.x = data.x;
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths,
                            lengths_.lengths(data.array, {data.steps, data.batch, false}));
    out.lengths = lengths;
    std::vector<float> h0;
    if (!state_.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(const Array* array, state_.find(data.array));
      if (!is_float(array->dtype)) {
        return {StatusCode::kInvalidArgument, state_.label(data.array) + " has the dtype " +
                                                  std::string(to_string(array->dtype)) +
                                                  "; the float model needs floats [layers * directions, N, H], not "
                                                  "codes"};
      }
      h0 = array->to_float();
      out.h0 = h0;
    }
    Status status = use(out, data);
    if (status.ok()) return status;
    const bool is_state = status.message().starts_with("h0 ");
    return {status.code(), (is_state ? state_.label(data.array) : data.name) + ": " + status.message()};
  };
  for (const std::string& file : files_) {
    const auto pipe = pipes_.find(file);
    ISOBIT_RETURN_IF_ERROR(pipe != pipes_.end()
                               ? for_each_array(pipe->second, channels_, use_array, batch_first_, warnings)
                               : for_each_array(file, channels_, use_array, batch_first_, warnings));
  }
  return {};
}

Result<SequenceFiles::Extents> SequenceFiles::extents() const {
  Extents out;
  const auto count = [&](const GruSequences& data, const Sequences&) -> Status {
    out.sequences += data.batch;
    for (int64_t n = 0; n < data.batch; ++n) {
      out.steps += data.lengths.empty() ? data.steps : data.lengths[static_cast<size_t>(n)];
    }
    return {};
  };
  ISOBIT_RETURN_IF_ERROR(for_each(count, out.warnings));
  return out;
}

}  // namespace isobit::tool
