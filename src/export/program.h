// SPDX-License-Identifier: Apache-2.0
// The C of one export while it is put together: functions and const data, each once, and their sizes.
#ifndef ISOBIT_EXPORT_PROGRAM_H_
#define ISOBIT_EXPORT_PROGRAM_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bounds.h"
#include "isobit/export.h"
#include "isobit/grid.h"
#include "isobit/rounding.h"

namespace isobit {

/// Words of a text, each with what takes its place; longer words first where one begins with another.
using Words = std::initializer_list<std::pair<std::string_view, std::string>>;
std::string fill(std::string text, Words words);

/// An integer type of C: "int8_t", "uint16_t", "int64_t".
std::string c_type(Dtype dtype);
/// A constant of C that fits int32 or int64, whatever its type is there: "-128", "(-2147483647 - 1)".
std::string c_number(int64_t value);
/// int32_t or int64_t.
inline std::string sum_type(bool is_wide) { return is_wide ? "int64_t" : "int32_t"; }

inline bool fits_s32(Int128 magnitude) { return magnitude <= static_cast<Int128>(INT32_MAX); }

/// Where a byte of const data belongs in the table of sizes.
enum class DataPart { kWeights, kTables, kOther, kSelftest };

/// In the texts that it takes, $ stands for the name of the export and @NAME for the same in capitals.
class CProgram {
 public:
  CProgram(std::string name, CTarget target, Rounding rounding);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] CTarget target() const { return target_; }
  /// `text` with the name in place of $ and @NAME.
  [[nodiscard]] std::string named(std::string text) const;

  // ---- The .c of code

  /// A function that others call: once, in the order in which they are added. Returns `name`.
  std::string add_function(const std::string& name, const std::string& text);
  /// The function that is round_shift() of 32 or 64 bits.
  std::string round_shift(bool is_wide);
  /// A shift that it will meet: a branch that no shift takes is left out.
  void note_shift(bool is_wide, int shift);
  /// The function that clamps 32 or 64 bits.
  std::string clamp(bool is_wide);

  // ---- Const data

  /// `values` as an array of a type; `name` is without that of the export. Returns its name in C. Of equal shared
  /// arrays there is one, the first.
  std::string add_array(Dtype type, const std::string& name, std::span<const int64_t> values, DataPart part,
                        bool is_shared = false);
  /// The same of 32-bit words, which are aligned.
  std::string add_words(const std::string& name, std::span<const uint32_t> words, DataPart part);
  /// Lets the code read what add_array(), add_words() or add_object() has made, by its name in C.
  void make_external(const std::string& name);
  /// An object of a type of the header: the initialisers of its members, a line each. Of equal ones there is one, the
  /// first.
  std::string add_object(const std::string& type, const std::string& name, const std::vector<std::string>& members,
                         int64_t bytes);
  /// A line of comment above what comes next.
  void add_data_comment(const std::string& text) { data_ += "\n/* " + named(text) + " */\n"; }

  /// Declarations that both .c share, once for a key.
  void add_internal(const std::string& key, const std::string& text);

  /// The files; `head`: lines of the comment at the top of each. `public_header`: between includes and internals;
  /// `code`: what comes after the functions.
  [[nodiscard]] std::vector<ExportedFile> files(const std::vector<std::string>& head, const std::string& public_header,
                                                const std::string& code) const;

  CExportSizes sizes;

 private:
  int64_t& bytes_of(DataPart part);
  struct Rounder {
    bool is_used = false, is_negative = false, is_zero = false, is_long = false;
  };
  [[nodiscard]] std::string round_shift_text(bool is_wide) const;

  std::string name_, upper_;
  CTarget target_;
  Rounding rounding_;
  Rounder rounders_[2];
  bool clamps_[2] = {false, false};
  std::set<std::string> functions_, internal_keys_;
  std::string code_, data_, internal_;
  std::map<std::string, std::string> shared_;  // content of an array -> its name
};

}  // namespace isobit

#endif  // ISOBIT_EXPORT_PROGRAM_H_
