// SPDX-License-Identifier: Apache-2.0
#include "isobit/fp16_export.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <set>
#include <utility>

#include "core/float_mode.h"
#include "core/half.h"
#include "core/toolchain/c_source.h"
#include "isobit/text.h"
#include "table/fp16/reference.h"

namespace isobit {
namespace {

std::string number(size_t value) { return std::to_string(value); }
uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

size_t entries_of(const Fp16Table& table) {
  size_t count = 0;
  for (const Fp16Pieces& pieces : table.pieces) count += pieces.values.size();
  return count;
}

/// What the table is, a line each, for the head of a file.
std::vector<std::string> describe(const Fp16Table& table) {
  const Fp16Certificate& c = table.certificate;
  std::vector<std::string> lines = {
      table.function + ": " + fp16_formula(table.function, table.beta),
      "model " + std::string(to_string(table.model)) + ", range reduction " + std::string(to_string(table.reduction)) +
          ", " + number(entries_of(table)) + (table.half_values ? " float16" : " float32") + " values",
  };
  if (c.share_within_ulp > 0) {  // else nobody has certified it
    lines.push_back(
        format("certificate, over all 63488 finite inputs: at most %.4g ULP of float16, worst at code 0x%04x,",
               c.max_ulp, c.worst_code));
    lines.push_back(format("%.4g ULP on average, %.2f %% exact, %.2f %% within 1 ULP, largest absolute error %.4g",
                           c.mean_ulp, 100 * c.share_exact, 100 * c.share_within_ulp, c.max_absolute));
  }
  return lines;
}

Status check_differences(const Fp16Table& table) {
  for (const Fp16Pieces& pieces : table.pieces)
    for (size_t i = 1; i < pieces.values.size(); ++i)
      if (!std::isfinite(pieces.values[i] - pieces.values[i - 1]))
        return {StatusCode::kUnsupported, "table " + table.function + ": values[" + number(i) + "] - values[" +
                                              number(i - 1) +
                                              "] is no finite float32; such a table cannot be exported"};
  return {};
}

// ---------------------------------------------------------------- C source
// In the texts below $ stands for the name; the words in capitals after @ are replaced too.

constexpr std::string_view kHeader = R"(#ifndef $_H_
#define $_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* @FORMULA
   x and the result are codes of float16 (IEEE 754 binary16). Every NaN gives 0x7E00. */
uint16_t $(uint16_t x);

/* The same for x rounded to float16 (to nearest, ties to even); the result is a float16 number. */
float $_f32(float x);

#ifdef __cplusplus
}
#endif

#endif
)";

constexpr std::string_view kArithmetic = R"(
/* There is no floating-point arithmetic here: a number is the 32 bits of a float32, and every operation is done in
   integers and rounded once, to nearest even. So no compiler, option (contraction, fast-math) or FPU changes a bit. */
#define $_SIGN ((uint32_t)0x80000000)
#define $_ONE ((uint32_t)0x3F800000)

/* Shifts m, which is not 0 and below 2^62, until bit 61 is its highest. Returns the shift. */
static int $_normal(uint64_t *m)
{
  int shift = 0, step;
  for (step = 32; step != 0; step >>= 1) {
    if (*m < (uint64_t)1 << (62 - step)) {
      *m <<= step;
      shift += step;
    }
  }
  return shift;
}

/* The float32 number nearest to +-m 2^e, for m in 1..2^63 - 1. */
static uint32_t $_round(uint32_t sign, uint64_t m, int e)
{
  int shift = 38;
  uint64_t rest, half;
  uint32_t bits;
  if (m >> 62 != 0) {
    m = (m >> 1) | (m & 1);
    ++e;
  }
  e -= $_normal(&m);
  e += 188; /* the exponent as float32 has it */
  if (e >= 255) return sign | (uint32_t)0x7F800000;
  if (e <= 0) { /* subnormal */
    shift += 1 - e;
    if (shift > 63) shift = 63;
    e = 1;
  }
  rest = m & (((uint64_t)1 << shift) - 1);
  half = (uint64_t)1 << (shift - 1);
  bits = (uint32_t)(m >> shift);
  if (rest > half || (rest == half && (bits & 1) != 0)) ++bits;
  return sign | (((uint32_t)(e - 1) << 23) + bits); /* the leading 1, or a carry, adds to the exponent */
}

static void $_split(uint32_t a, uint64_t *m, int *e)
{
  *m = a & 0x7FFFFF;
  *e = (int)(a >> 23 & 255);
  if (*e != 0) *m |= 0x800000;
  else *e = 1;
  *e -= 150;
}

/* a b + c of finite numbers, rounded once. The product has 48 bits and is exact. Both terms get their highest bit at
   bit 61, so 14 bits below them are free: no bit is lost where leading bits can cancel (a shift of 0 or 1); what a
   longer shift drops is kept as a 1 in bit 0, 30 or more places below the last place of the result. */
static uint32_t $_fused(uint32_t a, uint32_t b, uint32_t c)
{
  uint32_t sign = (a ^ b) & $_SIGN, sign_c = c & $_SIGN;
  uint64_t m, n;
  int e, f;
  $_split(a, &m, &e);
  $_split(b, &n, &f);
  m *= n;
  e += f;
  $_split(c, &n, &f);
  if (m == 0) return n != 0 || sign == sign_c ? c : 0;
  if (n == 0) return $_round(sign, m, e);
  e -= $_normal(&m);
  f -= $_normal(&n);
  if (f > e || (f == e && n > m)) {
    uint64_t swap_m = m;
    int swap_e = e;
    uint32_t swap_sign = sign;
    m = n;
    n = swap_m;
    e = f;
    f = swap_e;
    sign = sign_c;
    sign_c = swap_sign;
  }
  f = e - f;
  if (f > 61) n = 1;
  else n = n >> f | ((n & (((uint64_t)1 << f) - 1)) != 0);
  m = sign == sign_c ? m + n : m - n;
  return m == 0 ? 0 : $_round(sign, m, e);
}

static uint32_t $_multiply(uint32_t a, uint32_t b)
{
  return $_fused(a, b, $_SIGN); /* + -0, which changes nothing */
}

static uint32_t $_subtract(uint32_t a, uint32_t b)
{
  return $_fused($_ONE, a, b ^ $_SIGN);
}

/* float16 to float32, exact */
static uint32_t $_widen(uint16_t x)
{
  uint32_t sign = (uint32_t)(x & 0x8000u) << 16, m = x & 0x3FFu, e = x >> 10 & 31u;
  if (e == 31) return sign | (uint32_t)0x7F800000 | m << 13;
  if (e == 0) return m == 0 ? sign : $_round(sign, m, -24);
  return sign | (e + 112) << 23 | m << 13;
}

/* float32 to float16, to nearest even; NaN to 0x7E00 */
static uint16_t $_narrow(uint32_t a)
{
  uint32_t sign = a >> 16 & 0x8000, half;
  a &= 0x7FFFFFFF;
  if (a > 0x7F800000) return 0x7E00;
  if (a >= 0x47800000) {
    half = 0x7C00;
  } else if (a >= 0x38800000) {
    a -= (uint32_t)112 << 23;
    half = (a + 0xFFF + (a >> 13 & 1)) >> 13;
  } else if (a > 0x33000000) {
    uint32_t m = (a & 0x7FFFFF) | 0x800000;
    int shift = 126 - (int)(a >> 23);
    half = (m + ((uint32_t)1 << (shift - 1)) - 1 + (m >> shift & 1)) >> shift;
  } else {
    half = 0;
  }
  return (uint16_t)(sign | half);
}

/* in the order of the numbers */
static int32_t $_order(uint32_t a)
{
  return (a & $_SIGN) != 0 ? -(int32_t)(a & 0x7FFFFFFF) : (int32_t)a;
}
)";

constexpr std::string_view kLookUp = R"(
/* The piecewise linear function at x. Interval i has step[i] steps of equal width; y is a line between two values. */
static uint32_t $_look_up(@PARAMETERS)
{
  int32_t order = $_order(x);
  uint32_t p, left, right;
  int32_t base = 0, j, length;
  int i = 0;
  if (order <= $_order(@CUT(0))) return @VALUE(0);
  if (order >= $_order(@CUT(@INTERVALS))) return @VALUE(@LAST);
  while ($_order(@CUT(i + 1)) <= order) base += @STEP[i++];
  length = @STEP[i];
@POSITION
  p &= 0x7FFFFFFF; /* it may be -0 */
  j = 0;
  if (p >= $_ONE) { /* p = j + a; it is far below 2^23 */
    uint32_t m = (p & 0x7FFFFF) | 0x800000;
    int shift = 150 - (int)(p >> 23);
    j = (int32_t)(m >> shift);
    m &= ((uint32_t)1 << shift) - 1;
    p = m == 0 ? 0 : $_round(0, m, -shift);
  }
  if (j > length) j = length;
  left = @VALUE(base + j);
  right = j < length ? @VALUE(base + j + 1) : left;
@LINE
}
)";

constexpr std::string_view kRint = R"(
/* the nearest integer, ties to even; |a| is below 2^18 */
static int32_t $_rint(uint32_t a)
{
  int e = (int)(a >> 23 & 255), shift = 150 - e;
  uint32_t m = (a & 0x7FFFFF) | 0x800000, rest, half, q;
  if (e < 126) return 0;
  rest = m & (((uint32_t)1 << shift) - 1);
  half = (uint32_t)1 << (shift - 1);
  q = m >> shift;
  if (rest > half || (rest == half && (q & 1) != 0)) ++q;
  return (a & $_SIGN) != 0 ? -(int32_t)q : (int32_t)q;
}
)";

constexpr std::string_view kFromInteger = R"(
static uint32_t $_from_integer(int32_t k)
{
  if (k == 0) return 0;
  return k < 0 ? $_round($_SIGN, (uint32_t)-k, 0) : $_round(0, (uint32_t)k, 0);
}
)";

// x = k C + r with C in three parts.
constexpr std::string_view kReduce = R"(  k = $_rint($_multiply($_widen(x), @INVERSE)); /* @INVERSE_TEXT */
  minus_k = $_from_integer(-k);
  r = $_fused(minus_k, @PART1, $_widen(x)); /* @PART_TEXT in three parts */
  r = $_fused(minus_k, @PART2, r);
  r = $_fused(minus_k, @PART3, r);
)";

std::string hex32(float value) { return format("0x%08X", bits_of(value)); }

std::string reduce_text(bool circular) {
  std::string text(kReduce);
  text = replace_all(text, "@INVERSE_TEXT", circular ? "2/pi" : "log2 e");
  text = replace_all(text, "@INVERSE", hex32(circular ? kTwoOverPi : kLog2E));
  text = replace_all(text, "@PART_TEXT", circular ? "pi/2" : "ln 2");
  text = replace_all(text, "@PART1", hex32(circular ? kHalfPi1 : kLn2Part1));
  text = replace_all(text, "@PART2", hex32(circular ? kHalfPi2 : kLn2Part2));
  return replace_all(text, "@PART3", hex32(circular ? kHalfPi3 : kLn2Part3));
}

/// The body of the function on codes.
std::string body_text(Fp16Reduction reduction) {
  const std::string nan = "  if ((x & 0x7FFFu) > 0x7C00u) return 0x7E00;\n";
  // x = +-2^k m
  const std::string exponent = R"(  a = $_widen(x) & 0x7FFFFFFF;
  k = (int)(a >> 23) - 127;
  a = (a & 0x7FFFFF) | $_ONE;
)";
  switch (reduction) {
    case Fp16Reduction::kNone: return nan + "  return $_narrow($_look_up($_widen(x)));\n";
    case Fp16Reduction::kInverseSigmoid:
      return R"(  if ((x & 0x7FFFu) == 0) return 0xFC00;
  if (x == 0x3C00u) return 0x7C00;
  if (x > 0x3C00u) return 0x7E00;
  return $_narrow($_look_up($_widen(x)));
)";
    case Fp16Reduction::kSin:
    case Fp16Reduction::kCos: {
      const bool is_sin = reduction == Fp16Reduction::kSin;
      return R"(  int32_t k;
  uint32_t minus_k, r;
  unsigned quarter;
  if ((x & 0x7FFFu) >= 0x7C00u) return 0x7E00;
)" + std::string(is_sin ? "  if ((x & 0x7FFFu) == 0) return x;\n" : "") +
             reduce_text(true) + "  quarter = (unsigned)(" + (is_sin ? "(uint32_t)k" : "((uint32_t)k + 1)") +
             " & 3);\n" +
             R"(  r = $_look_up(r, &$_pieces[quarter & 1]);
  return $_narrow(quarter >= 2 ? r ^ $_SIGN : r);
)";
    }
    case Fp16Reduction::kExp:
      return R"(  int32_t k;
  uint32_t minus_k, r;
)" + nan + R"(  if ((x & 0x7FFFu) == 0x7C00u) return x == 0x7C00u ? 0x7C00 : 0;
)" + reduce_text(false) +
             R"(  if (k < -64) k = -64;
  if (k > 64) k = 64;
  return $_narrow($_multiply($_look_up(r), (uint32_t)(k + 127) << 23));
)";
    case Fp16Reduction::kLog:
      return "  uint32_t a;\n  int k;\n" + nan + R"(  if ((x & 0x7FFFu) == 0) return 0xFC00;
  if (x > 0x7C00u) return 0x7E00;
  if (x == 0x7C00u) return 0x7C00;
)" + exponent +
             R"(  if (a >= @ROOT) { /* above sqrt 2 */
    a -= (uint32_t)1 << 23;
    ++k;
  }
  return $_narrow($_fused($_from_integer(k), @LN2, $_look_up(a)));
)";
    case Fp16Reduction::kReciprocal:
      return "  uint32_t a;\n  int k;\n  uint16_t sign = x & 0x8000u;\n" + nan +
             R"(  if ((x & 0x7FFFu) == 0) return (uint16_t)(sign | 0x7C00u);
  if ((x & 0x7FFFu) == 0x7C00u) return sign;
)" + exponent +
             R"(  a = $_multiply($_look_up(a), (uint32_t)(127 - k) << 23);
  return $_narrow(sign != 0 ? a ^ $_SIGN : a);
)";
    case Fp16Reduction::kRsqrt:
    case Fp16Reduction::kSqrt: {
      const bool is_sqrt = reduction == Fp16Reduction::kSqrt;
      return "  uint32_t a;\n  int k;\n" + nan + "  if ((x & 0x7FFFu) == 0) return " +
             (is_sqrt ? "x" : "(uint16_t)(x | 0x7C00u)") + ";\n  if (x > 0x7C00u) return 0x7E00;\n" +
             "  if (x == 0x7C00u) return " + (is_sqrt ? "0x7C00" : "0") + ";\n" + exponent +
             R"(  if (k % 2 != 0) {
    a += (uint32_t)1 << 23;
    --k;
  }
  return $_narrow($_multiply($_look_up(a), (uint32_t)(127 )" +
             (is_sqrt ? "+" : "-") + " k / 2) << 23));\n";
    }
  }
  return {};
}

/// `static const TYPE NAME[n] = {...};`
std::string array_text(const std::string& type, const std::string& name, const std::vector<uint32_t>& words,
                       const char* pattern, size_t per_line) {
  std::string text = "static const " + type + " " + name + "[" + number(words.size()) + "] = {";
  for (size_t i = 0; i < words.size(); ++i) {
    text += i % per_line == 0 ? "\n  " : " ";
    char buffer[24];
    std::snprintf(buffer, sizeof buffer, pattern, words[i]);
    text += buffer;
    if (i + 1 < words.size()) text += ",";
  }
  return text + "\n};\n";
}

/// Float16 numbers are kept as such: half the memory.
struct Words {
  bool half = false;
  std::vector<uint32_t> words;
};
Words words_of(const std::vector<float>& values, bool half) {
  Words result{half, {}};
  for (const float value : values) result.words.push_back(half ? f32_to_f16(value) : bits_of(value));
  return result;
}

struct Widths {
  bool cuts = false, scales = false, values = false;  // float16?
};
Widths widths_of(const Fp16Table& table) {
  return {table.reduction == Fp16Reduction::kNone, table.model != Fp16Model::kF32, table.half_values};
}

std::string array_text(const std::string& name, const std::vector<float>& values, bool half) {
  const Words words = words_of(values, half);
  return half ? array_text("uint16_t", name, words.words, "0x%04X", 14)
              : array_text("uint32_t", name, words.words, "0x%08X", 9);
}

std::string source_text(const Fp16Table& table) {
  const Widths widths = widths_of(table);
  const bool two = table.pieces.size() == 2;
  const auto type = [](bool half) { return half ? std::string("uint16_t") : std::string("uint32_t"); };
  std::string text = "\n#include \"$.h\"\n\n/* Bits of float16 numbers (4 digits) and float32 numbers (8 digits). */\n";
  for (size_t i = 0; i < table.pieces.size(); ++i) {
    const Fp16Pieces& pieces = table.pieces[i];
    const std::string suffix = two ? (i == 0 ? "_sin" : "_cos") : "";
    std::vector<uint32_t> steps(pieces.steps.begin(), pieces.steps.end());
    text += array_text("uint16_t", "$_step" + suffix, steps, "%u", 20);
    text += array_text("$_cut" + suffix, pieces.cut_points, widths.cuts);
    text += array_text("$_scale" + suffix, pieces.scales, widths.scales);
    text += array_text("$_value" + suffix, pieces.values, widths.values);
  }
  if (two) {
    text += "\nstatic const struct $_piece {\n  const uint16_t *step;\n  const " + type(widths.cuts) +
            " *cut;\n  const " + type(widths.scales) + " *scale;\n  const " + type(widths.values) +
            " *value;\n  int32_t intervals, last;\n} $_pieces[2] = {\n";
    for (size_t i = 0; i < 2; ++i) {
      const std::string row = replace_all("  {$_step#, $_cut#, $_scale#, $_value#, ", "#", i == 0 ? "_sin" : "_cos");
      text += row + number(table.pieces[i].steps.size()) + ", " + number(table.pieces[i].values.size() - 1) + "},\n";
    }
    text += "};\n";
  }
  text += kArithmetic;

  std::string look_up(kLookUp);
  look_up = replace_all(look_up, "@PARAMETERS", two ? "uint32_t x, const struct $_piece *t" : "uint32_t x");
  switch (table.model) {
    case Fp16Model::kF32:
    case Fp16Model::kNliGpu:
      look_up = replace_all(look_up, "@POSITION", "  p = $_multiply($_subtract(x, @CUT(i)), @SCALE(i));");
      look_up = replace_all(look_up, "@LINE", "  return $_fused(p, $_subtract(right, left), left);");
      break;
    case Fp16Model::kNliCpu:
      look_up = replace_all(look_up, "@POSITION",
                            "  p = $_widen($_narrow($_subtract(x, @CUT(i))));\n"
                            "  p = $_widen($_narrow($_multiply(p, @SCALE(i))));");
      look_up =
          replace_all(look_up, "@LINE",
                      "  return $_fused($_ONE, $_multiply($_subtract(right, left), p), left); /* two roundings */");
      break;
  }
  look_up = replace_all(look_up, "@INTERVALS", two ? "t->intervals" : number(table.pieces[0].steps.size()));
  look_up = replace_all(look_up, "@LAST", two ? "t->last" : number(table.pieces[0].values.size() - 1));
  look_up = replace_all(look_up, "@STEP", two ? "t->step" : "$_step");
  const auto access = [&](std::string_view word, const std::string& array, bool half) {
    // @WORD(index) to array[index] or widen(array[index]); an index has no parentheses.
    for (size_t at = 0; (at = look_up.find(word, at)) != std::string::npos;) {
      const size_t close = look_up.find(')', at);
      const size_t open = at + word.size() + 1;
      const std::string element = (two ? "t->" : "$_") + array + "[" + look_up.substr(open, close - open) + "]";
      look_up.replace(at, close + 1 - at, half ? "$_widen(" + element + ")" : element);
    }
  };
  access("@CUT", "cut", widths.cuts);
  access("@SCALE", "scale", widths.scales);
  access("@VALUE", "value", widths.values);
  text += look_up;

  const bool circular = two;
  if (circular || table.reduction == Fp16Reduction::kExp) text += kRint;
  if (circular || table.reduction == Fp16Reduction::kExp || table.reduction == Fp16Reduction::kLog)
    text += kFromInteger;
  std::string body = body_text(table.reduction);
  body = replace_all(body, "@ROOT", hex32(kSqrt2Up));
  body = replace_all(body, "@LN2", hex32(kLn2Part1));
  text += "\nuint16_t $(uint16_t x)\n{\n" + body + "}\n";
  text += R"(
float $_f32(float x)
{
  union {
    float number;
    uint32_t bits;
  } u;
  u.number = x;
  u.bits = $_widen($($_narrow(u.bits)));
  return u.number;
}
)";
  return text;
}

constexpr std::string_view kTest = R"(
/* Compares $() with the table it was made from: some codes one by one, all 65536 by a digest
   (FNV-1a of 64 bits over the results as little-endian 16-bit words). Returns 0 when everything is right. */
#include <stdio.h>

#include "$.h"

static const uint16_t codes[@COUNT][2] = { /* x, result */@CODES
};

static const uint32_t floats[@FLOAT_COUNT][2] = { /* the same for bits of float32 */@FLOATS
};

int main(void)
{
  uint64_t hash = ((uint64_t)0xCBF29CE4 << 32) | 0x84222325;
  const uint64_t right = ((uint64_t)0x@HIGH << 32) | 0x@LOW;
  const uint64_t prime = ((uint64_t)0x100 << 32) | 0x1B3;
  uint32_t x;
  int i;
  for (i = 0; i < @COUNT; ++i) {
    unsigned y = $(codes[i][0]);
    if (y != codes[i][1]) {
      printf("$(0x%04X) is 0x%04X, must be 0x%04X\n", (unsigned)codes[i][0], y, (unsigned)codes[i][1]);
      return 1;
    }
  }
  for (i = 0; i < @FLOAT_COUNT; ++i) {
    union {
      float number;
      uint32_t bits;
    } u;
    u.bits = floats[i][0];
    u.number = $_f32(u.number);
    if (u.bits != floats[i][1]) {
      printf("$_f32 at bits 0x%08lX has bits 0x%08lX, must be 0x%08lX\n", (unsigned long)floats[i][0],
             (unsigned long)u.bits, (unsigned long)floats[i][1]);
      return 1;
    }
  }
  for (x = 0; x < 65536; ++x) {
    unsigned y = $((uint16_t)x);
    hash = (hash ^ (y & 255)) * prime;
    hash = (hash ^ (y >> 8)) * prime;
  }
  if (hash != right) {
    printf("$: the digest of all results is %08lX%08lX, must be @HIGH@LOW\n", (unsigned long)(hash >> 32),
           (unsigned long)(hash & 0xFFFFFFFF));
    return 1;
  }
  printf("$: all 65536 results are right\n");
  return 0;
}
)";

std::string test_text(const Fp16Table& table) {
  const Fp16TableView view = view_of(table);
  std::vector<uint16_t> results(65536);
  for (uint32_t x = 0; x < 65536; ++x) results[x] = fp16_evaluate(view, static_cast<uint16_t>(x));

  // Specials, both sides of the cut points, and a spread with a step that is odd.
  std::set<uint16_t> codes = {0x0000, 0x0001, 0x03ff, 0x0400, 0x3bff, 0x3c00, 0x3c01, 0x7bff, 0x7c00, 0x7c01,
                              0x7e00, 0x8000, 0x8001, 0x83ff, 0x8400, 0xbc00, 0xfbff, 0xfc00, 0xfe00, 0xffff};
  codes.insert(table.certificate.worst_code);
  const std::vector<float>& cuts = table.pieces.front().cut_points;
  for (size_t i = 0; i < cuts.size() && i < 16; ++i) {
    const uint16_t code = f32_to_f16(cuts[i]);
    for (int d = -1; d <= 1; ++d) codes.insert(static_cast<uint16_t>(code + d));
  }
  for (uint32_t x = 0; x < 65536; x += 1021) codes.insert(static_cast<uint16_t>(x));
  std::string code_text;
  size_t count = 0;
  for (const uint16_t code : codes)
    code_text += (count++ % 6 == 0 ? "\n  " : " ") + format("{0x%04X, 0x%04X},", code, results[code]);
  code_text.pop_back();

  // Float32 arguments that are not float16 numbers: ties, the ends of the range, NaN.
  const uint32_t floats[] = {0x3f800000, 0x3f801000, 0x3f801001, 0x3f803000, 0xbf801000, 0xbf7ff000, 0x33000000,
                             0x33000001, 0xb3000001, 0x00000001, 0x80000000, 0x477fefff, 0x477ff000, 0xc77ff000,
                             0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x40490fdb, 0xc0490fdb, 0x3dcccccd};
  std::string float_text;
  size_t float_count = 0;
  for (const uint32_t bits : floats) {
    const uint16_t y = results[f32_to_f16(std::bit_cast<float>(bits))];
    float_text += (float_count++ % 4 == 0 ? "\n  " : " ") + format("{0x%08X, 0x%08X},", bits, bits_of(f16_to_f32(y)));
  }
  float_text.pop_back();

  uint64_t hash = 0xcbf29ce484222325;
  for (const uint16_t y : results)
    for (const unsigned byte : {y & 255U, static_cast<unsigned>(y) >> 8}) hash = (hash ^ byte) * 0x100000001b3;
  std::string text = replace_all(std::string(kTest), "@CODES", code_text);
  text = replace_all(std::move(text), "@FLOATS", float_text);
  text = replace_all(std::move(text), "@COUNT", number(count));
  text = replace_all(std::move(text), "@FLOAT_COUNT", number(float_count));
  text = replace_all(std::move(text), "@HIGH", format("%08X", static_cast<uint32_t>(hash >> 32)));
  return replace_all(std::move(text), "@LOW", format("%08X", static_cast<uint32_t>(hash)));
}

}  // namespace

std::string fp16_formula(std::string_view function, double beta) {
  const DefaultFloatMode mode;
  if (function == "swish") return format("x / (1 + e^(-beta x)), beta = %.17g", beta);
  static constexpr std::pair<std::string_view, std::string_view> kFormulas[] = {
      {"silu", "x / (1 + e^-x)"},
      {"gelu", "x (1 + erf(x / sqrt 2)) / 2"},
      {"gelu_tanh", "x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2"},
      {"sigmoid", "1 / (1 + e^-x)"},
      {"tanh", "tanh x"},
      {"exp", "e^x"},
      {"log", "ln x"},
      {"sin", "sin x"},
      {"cos", "cos x"},
      {"mish", "x tanh(ln(1 + e^x))"},
      {"softplus", "ln(1 + e^x)"},
      {"elu", "x; e^x - 1 for x < 0"},
      {"selu", "1.0507009873554805 times x; times 1.6732632423543773 (e^x - 1) for x < 0"},
      {"hardsigmoid", "min(max(x + 3, 0), 6) / 6"},
      {"hardswish", "x min(max(x + 3, 0), 6) / 6"},
      {"quick_gelu", "x / (1 + e^(-1.702 x))"},
      {"relu", "max(x, 0)"},
      {"leaky_relu", "x; x / 100 for x < 0"},
      {"relu6", "min(max(x, 0), 6)"},
      {"erf", "erf x"},
      {"sqrt", "sqrt x"},
      {"rsqrt", "1 / sqrt x"},
      {"reciprocal", "1 / x"},
      {"square", "x^2"},
      {"inverse_sigmoid", "ln(x / (1 - x))"},
  };
  for (const auto& [name, text] : kFormulas)
    if (name == function) return std::string(text);
  return "a function of the user's own";
}

Result<std::vector<ExportedFile>> export_fp16_c(const Fp16Table& table, std::string_view name,
                                                const Fp16CExportOptions& options) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_c_name(name));
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, table.function));
  ISOBIT_RETURN_IF_ERROR(check_differences(table));
  std::string head = "/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by isobit; do not edit.\n";
  for (const std::string& line : describe(table)) head += "   " + line + "\n";
  head += "   The arithmetic is that of isobit's docs/numerics.md, section 13. */\n";
  std::vector<ExportedFile> files;
  const auto add = [&](const char* suffix, const std::string& text) {
    files.push_back({std::string(name) + suffix, replace_all(head + text, "$", name)});
  };
  add(".h", replace_all(std::string(kHeader), "@FORMULA", fp16_formula(table.function, table.beta)));
  add(".c", source_text(table));
  if (options.with_test) add("_test.c", test_text(table));
  return files;
}

Result<std::string> export_fp16_hex(const Fp16Table& table) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, table.function));
  std::string text = "// Made by isobit. SPDX-License-Identifier: Apache-2.0\n";
  for (const std::string& line : describe(table)) text += "// " + line + "\n";
  size_t address = 0;
  const auto section = [&](const std::string& title, const std::vector<uint32_t>& words, bool half) {
    text += format("// %s\n@%08zx\n", title.c_str(), address);
    for (const uint32_t word : words) text += format(half ? "%04x\n" : "%08x\n", word);
    address += words.size();
  };
  const auto floats = [&](const std::string& title, const std::vector<float>& values, bool half) {
    section(title + (half ? ", float16" : ", float32"), words_of(values, half).words, half);
  };
  section("model, range reduction, bits of a value, number of pieces",
          {static_cast<uint32_t>(table.model), static_cast<uint32_t>(table.reduction), table.half_values ? 16U : 32U,
           static_cast<uint32_t>(table.pieces.size())},
          true);
  const Widths widths = widths_of(table);
  for (size_t i = 0; i < table.pieces.size(); ++i) {
    const Fp16Pieces& pieces = table.pieces[i];
    const std::string piece = table.pieces.size() == 1 ? "" : (i == 0 ? "piece 0 (sin): " : "piece 1 (cos): ");
    section(piece + "number of intervals", {static_cast<uint32_t>(pieces.steps.size())}, true);
    section(piece + "steps of each interval", {pieces.steps.begin(), pieces.steps.end()}, true);
    floats(piece + "cut points", pieces.cut_points, widths.cuts);
    floats(piece + "scales", pieces.scales, widths.scales);
    floats(piece + "values", pieces.values, widths.values);
  }
  return text;
}

}  // namespace isobit
