// SPDX-License-Identifier: Apache-2.0
// Activation tables: integer code in, integer code out, with a certificate. numerics.md, section 6.
#ifndef ISOBIT_TABLE_H_
#define ISOBIT_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/grid.h"
#include "isobit/rounding.h"
#include "isobit/status.h"

namespace isobit {

enum class Activation : int32_t { kSigmoid = 0, kTanh = 1 };
/// "sigmoid", "tanh".
std::string_view to_string(Activation activation);

enum class TableKind : int32_t { kDirect = 0, kInterpolated = 1, kSegments = 2 };
/// "direct", "interpolated", "segments".
std::string_view to_string(TableKind kind);

/// Written "direct", "interpolated" or "segments:N".
struct TableOptions {
  TableKind kind = TableKind::kDirect;
  int32_t segments = 16;   // kSegments: 2..256
  int32_t guard_bits = 4;  // kInterpolated: G, 0..8
  bool operator==(const TableOptions&) const = default;
};
std::string to_string(const TableOptions& options);
Result<TableOptions> parse_table_options(std::string_view text);
/// direct up to 12 input bits, interpolated above.
TableOptions default_table_options(int input_bits);

/// The largest |table(q) - code of the correctly rounded function at q| over all inputs, in output LSB, and the
/// smallest q where it occurs.
struct TableCertificate {
  int64_t max_error_lsb = 0;
  int64_t worst_code = 0;
  bool operator==(const TableCertificate&) const = default;
};

struct ActivationTable {
  Activation function = Activation::kSigmoid;
  Grid input;
  Grid output;
  Rounding rounding = Rounding::kNearestEven;
  TableKind kind = TableKind::kDirect;
  int64_t low = 0;   // outputs are clamped to [low, high] = [code(lower bound of f), code(upper bound of f)]
  int64_t high = 0;  // within the output grid

  // kDirect: entry for input code q at index q - input.min(), 2^bits entries.
  std::vector<int32_t> entries;

  // kInterpolated: t = clamp(q, origin, origin + 2^(interval_bits + fraction_bits) - 1) - origin
  int64_t origin = 0;
  int32_t interval_bits = 0;      // k: 2^k intervals, 2^k + 1 anchors
  int32_t fraction_bits = 0;      // F
  int32_t guard_bits = 0;         // G
  std::vector<int64_t> anchors;   // code of f (zero point included) times 2^G

  // kSegments: i = number of thresholds <= q; y = round_shift(slopes[i] * (q - z_in) + intercepts[i], shift)
  std::vector<int32_t> thresholds;  // n - 1 input codes, ascending; unused ones repeat input.max()
  std::vector<int32_t> slopes;      // n
  std::vector<int64_t> intercepts;  // n, zero point included, times 2^shift
  int32_t shift = 0;                // 0..31

  TableCertificate certificate;

  /// The normative look-up: any int64 q, clamped to the input grid first.
  [[nodiscard]] int64_t operator()(int64_t q) const;
  bool operator==(const ActivationTable&) const = default;
};

/// Fits a table for the model's rounding mode and certifies it over all inputs. Input and output at most 16 bits
/// (kUnsupported otherwise); other values outside their limits are kInvalidArgument. When `interpolated` cannot reach
/// 1 LSB with at most 2^12 intervals, or the input is narrower than 6 bits, a direct table is returned instead, as
/// numerics.md section 6 says. Values come from 50-digit arithmetic, never from libm, and the fits are integer, so
/// the same table comes out on every machine.
/// Every table is monotone. It is odd-symmetric about (z_in, C), C = f(0) / S_out + z_out, when C is an integer
/// strictly between low and high and, for `interpolated`, an anchor lies at z_in (and G >= 1 for floor): then
/// table(2 z_in - q) = 2 C - table(q) wherever both codes exist and neither is clamped, for nearest_even, and for
/// nearest_away when C = 0; in the other modes the two may differ by 1 where the value is an exact tie.
Result<ActivationTable> fit_table(Activation function, const Grid& input, const Grid& output,
                                  const TableOptions& options, Rounding rounding);

/// The correctly rounded function: clamp(round_half_even(f((q - z_in) * S_in) / S_out) + z_out), all input codes
/// in ascending order.
Result<std::vector<int32_t>> exact_codes(Activation function, const Grid& input, const Grid& output);

/// Checks sizes, order, overflow of every intermediate and widths of a table that came from a file, and that its
/// certificate is true.
Status check_table(const ActivationTable& table, std::string_view name);

/// Errors of a table over all inputs against exact_codes(), in units of the output's last bit.
struct TableErrors {
  int64_t inputs = 0;
  int64_t max_lsb = 0;
  int64_t worst_code = 0;  // the smallest input with max_lsb
  double mean_lsb = 0;
  double share_exact = 0;  // 0..1
  double share_within_lsb = 0;
};
Result<TableErrors> table_errors(const ActivationTable& table);

/// Remembers tables, for callers that make many models of one GRU. Safe to share between threads.
class TableCache {
 public:
  TableCache();
  ~TableCache();
  TableCache(const TableCache&) = delete;
  TableCache& operator=(const TableCache&) = delete;

  /// fit_table(), once for the same arguments.
  Result<ActivationTable> fit(Activation function, const Grid& input, const Grid& output, const TableOptions& options,
                              Rounding rounding);
  /// Whether fit() has made exactly this table, so that check_table() would pass.
  [[nodiscard]] bool made(const ActivationTable& table) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobit

#endif  // ISOBIT_TABLE_H_
