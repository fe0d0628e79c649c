// SPDX-License-Identifier: Apache-2.0
// Sequences with what is said of them beside the data: --batch-first, --lengths, --state.
#ifndef ISOBIT_TOOLS_SEQUENCES_H_
#define ISOBIT_TOOLS_SEQUENCES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data.h"
#include "isobit/compare.h"
#include "isobit/files.h"
#include "isobit/status.h"
#include "verbs.h"

namespace isobit::tool {

/// Files of arrays whose sequences a GRU of `channels` inputs takes.
class SequenceFiles {
 public:
  /// `data`: the arguments of `option`. Reads the files of `options`; `claims` gets all of them.
  static Result<SequenceFiles> open(const std::vector<std::string>& data, const std::string& option,
                                    const SequenceOptions& options, int64_t channels, FileClaims& claims);

  /// Calls `use` for every array, in the order of files and names; `source` is where the sequences are from. Warnings
  /// name arrays that are left out, and those whose batch and steps look exchanged.
  using Use = std::function<Status(const GruSequences&, const Sequences& source)>;
  Status for_each(const Use& use, std::vector<std::string>& warnings) const;

  /// What for_each() would show; every array is read and checked.
  struct Extents {
    int64_t sequences = 0;
    int64_t steps = 0;  // of all sequences together
    std::vector<std::string> warnings;
  };
  [[nodiscard]] Result<Extents> extents() const;

 private:
  bool batch_first_ = false;
  int64_t channels_ = 0;
  std::vector<std::string> files_;
  std::map<std::string, ArrayReader> pipes_;  // those of them that can be read once only
  Companion lengths_, state_;
};

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_SEQUENCES_H_
