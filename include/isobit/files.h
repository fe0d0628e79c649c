// SPDX-License-Identifier: Apache-2.0
// Files that one piece of work reads and writes: no output may be an input, or another output.
#ifndef ISOBIT_FILES_H_
#define ISOBIT_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "isobit/status.h"

namespace isobit {

/// Name every file here, in any order, before the first one is written. A file is told from another by device and
/// inode, symbolic links resolved; one that does not exist yet by its folder and its name there. Only regular files
/// count: /dev/null may be written to twice.
class FileClaims {
 public:
  /// `what` names the argument in messages, e.g. "-o". Of a .safetensors.index.json the files that it lists are read
  /// too, and of an ONNX model those with its external data. A file that is missing or cannot be read is no error here.
  Status reads(const std::string& path, const std::string& what);
  /// kInvalidArgument when `path` is claimed already.
  Status writes(const std::string& path, const std::string& what);

 private:
  /// Device and inode of the file, or of the nearest folder that exists and the rest of the path.
  using Identity = std::tuple<uint64_t, uint64_t, std::string>;
  struct Claim {
    bool written = false;
    std::string text;
  };

  Status claim(const std::string& path, const std::string& what, bool written);
  Status claim_external_files(const std::string& path, const std::string& what);

  std::map<Identity, Claim> claims_;
};

/// What is written, and so how its name may end.
enum class OutputKind { kSafetensors, kTensor, kArray, kArrays, kState, kSvg, kHex };
/// For before hours of work: refuses a file that cannot be created at `path`, is among `files` already, or has the ending
/// of another kind. `what` names the argument. Claims the file.
Status check_output(const std::string& path, const std::string& what, OutputKind kind, FileClaims& files);

}  // namespace isobit

#endif  // ISOBIT_FILES_H_
