// SPDX-License-Identifier: Apache-2.0
#include "export/product.h"

#include <cstddef>
#include <vector>

#include "isobit/text.h"

namespace isobit {
namespace {

std::string number(int64_t value) { return std::to_string(value); }
int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- C99

constexpr std::string_view kPlain = R"(
/* Sums of weight * x for three rows. @LAYOUT */
static void @F(const @W *w, uint32_t row, const @X *x, uint32_t count, @S *sums)
{
  const @W *w1 = w + row;
  const @W *w2 = w1 + row;
  @S s0 = 0;
  @S s1 = 0;
  @S s2 = 0;
  uint32_t k;
@LOOP
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
}
)";

constexpr std::string_view kPlainWhole = R"(  for (k = 0; k < count; ++k) {
    const @S a = x[k];
    s0 += a * w[k];
    s1 += a * w1[k];
    s2 += a * w2[k];
  })";

constexpr std::string_view kPlainFields = R"(  for (k = 0; k + @PERu <= count; k += @PERu) {
    const uint32_t v0 = *w++;
    const uint32_t v1 = *w1++;
    const uint32_t v2 = *w2++;
    @S a;
@FIELDS  }
  if (k < count) {
    const uint32_t rest = count % @PERu;
    uint32_t v0 = *w;
    uint32_t v1 = *w1;
    uint32_t v2 = *w2;
    uint32_t f;
    for (f = 0; f < rest; ++f) {
      const @S a = x[k + f];
      s0 += a * (@S)(v0 & @MASKu);
      s1 += a * (@S)(v1 & @MASKu);
      s2 += a * (@S)(v2 & @MASKu);
      v0 >>= @BITS;
      v1 >>= @BITS;
      v2 >>= @BITS;
    }
  })";

constexpr std::string_view kSum = R"(
static @S @F(const @X *x, uint32_t n)
{
  @S sum = 0;
  uint32_t k;
  for (k = 0; k < n; ++k) {
    sum += x[k];
  }
  return sum;
}
)";

// ---- Pairs

constexpr std::string_view kPairHelpers = R"(
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP
#include <arm_acle.h>
static uint32_t $_smlad(uint32_t w, uint32_t x, uint32_t sum)
{
  return (uint32_t)__smlad((int16x2_t)w, (int16x2_t)x, (int32_t)sum);
}
#elif defined(@NAME_PORTABLE)
static uint32_t $_smlad(uint32_t w, uint32_t x, uint32_t sum)
{
  const int32_t low = (int16_t)(w & 0xFFFFu) * (int16_t)(x & 0xFFFFu);
  const int32_t high = (int16_t)(w >> 16) * (int16_t)(x >> 16);
  return sum + (uint32_t)low + (uint32_t)high;
}
#else
#error "exported for @TARGET: compile with -mcpu=@TARGET, or define @NAME_PORTABLE for the same bytes in plain C"
#endif
)";

constexpr std::string_view kBytesHelper = R"(
/* Bytes 0 and 2 as a pair. */
static uint32_t $_sxtb16(uint32_t w)
{
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP
  return (uint32_t)__sxtb16((int8x4_t)w);
#else
  const uint32_t low = (uint32_t)(int32_t)(int8_t)(w & 0xFFu) & 0xFFFFu;
  return low | (uint32_t)(int32_t)(int8_t)(w >> 16 & 0xFFu) << 16;
#endif
}
)";

constexpr std::string_view kPairs = R"(
/* Sums of weight * x for three rows. A word of weights holds @WEIGHTS, the first in its lowest bits; a word of x two codes
   that are @DISTANCE apart, as prepared. */
static void @F(const uint32_t *w, uint32_t row, const uint32_t *x, uint32_t count, int32_t *sums)
{
  const uint32_t *w1 = w + row;
  const uint32_t *w2 = w1 + row;
  uint32_t s0 = 0;
  uint32_t s1 = 0;
  uint32_t s2 = 0;
  for (; count > 0; --count) {
    const uint32_t v0 = *w++;
    const uint32_t v1 = *w1++;
    const uint32_t v2 = *w2++;
    uint32_t a;
@FIELDS  }
  sums[0] = (int32_t)s0;
  sums[1] = (int32_t)s1;
  sums[2] = (int32_t)s2;
}
)";

constexpr std::string_view kPreparePairs = R"(
/* Codes of x in pairs that are @DISTANCE apart; zeros behind the last.@RETURNS */
static @RESULT @F(const @X *x, uint32_t n, uint32_t *pairs)
{
@START  uint32_t k, f;
  for (k = 0; k < n; k += 2u * @DISTANCEu) {
    for (f = 0; f < @DISTANCEu; ++f) {
      const uint32_t first = k + f;
      const uint32_t second = first + @DISTANCEu;
      const int32_t a = (first < n) ? x[first] : 0;
      const int32_t b = (second < n) ? x[second] : 0;
      *pairs++ = ((uint32_t)a & 0xFFFFu) | ((uint32_t)b << 16);
@ADD    }
  }
@END}
)";

// ---- Vectors

constexpr std::string_view kVectorHelpers = R"(
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)
#include <arm_mve.h>
#elif !defined(@NAME_PORTABLE)
#error "exported for @TARGET: compile with -mcpu=@TARGET, or define @NAME_PORTABLE for the same bytes in plain C"
#endif
)";

constexpr std::string_view kVectors = R"(
/* Sums of weight * x for three rows, @LANES bytes of weights at once, from which x is prepared. */
static void @F(const @W *w, uint32_t row, const @X *x, uint32_t count, int32_t *sums)
{
  const @W *w1 = w + row;
  const @W *w2 = w1 + row;
  int32_t s0 = 0;
  int32_t s1 = 0;
  int32_t s2 = 0;
  for (; count > 0; --count) {
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)
@LOADS    @V a;
@FIELDS#else
    uint32_t i;
    for (i = 0; i < @ELEMENTSu; ++i) {
      const uint32_t lane = i % @LANESu;
@SHIFT      s0 += x[i] * @FIELD(w);
      s1 += x[i] * @FIELD(w1);
      s2 += x[i] * @FIELD(w2);
    }
#endif
    w += @LANES;
    w1 += @LANES;
    w2 += @LANES;
    x += @ELEMENTS;
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
}
)";

constexpr std::string_view kPrepareVectors = R"(
/* Codes of x in the order in which vectors of weights meet them; zeros behind the last.@RETURNS */
static @RESULT @F(const @X *x, uint32_t n, @P *prepared)
{
@START  uint32_t k, f, lane;
  for (k = 0; k < n; k += @ELEMENTSu) {
    for (f = 0; f < @PERu; ++f) {
      for (lane = 0; lane < @LANESu; ++lane) {
        const uint32_t at = k + (lane * @PERu) + f;
        const int32_t a = (at < n) ? x[at] : 0;
        *prepared++ = (@P)a;
@ADD      }
    }
  }
@END}
)";

/// Weights in a byte.
int64_t per_byte(const Product& product) { return product.field_bits >= 8 ? 1 : 8 / product.field_bits; }
/// Bytes of a vector of weights.
int64_t lanes(const Product& product) { return product.kernel == ProductKernel::kBytes ? 16 : 8; }
/// Pairs of x that a word of weights meets; the codes of a pair are as many apart.
int64_t pairs(const Product& product) { return 16 / product.field_bits; }

std::string plain_text(const Product& product) {
  if (!product.has_fields()) return std::string(kPlainWhole);
  std::string fields;
  const int64_t mask = (1 << product.field_bits) - 1;
  for (int64_t f = 0; f < per_byte(product); ++f) {
    fields += "    a = x[k" + (f == 0 ? "" : " + " + number(f) + "u") + "];\n";
    for (const char* row : {"0", "1", "2"}) {
      const std::string value = std::string("v") + row, shift = number(f * product.field_bits);
      std::string field =
          f == 0 ? value + " & " + number(mask) + "u" : "(" + value + " >> " + shift + ") & " + number(mask) + "u";
      if ((f + 1) * product.field_bits == 8) field = value + " >> " + shift;
      fields += std::string("    s") + row + " += a * (@S)(" + field + ");\n";
    }
  }
  return fill(std::string(kPlainFields), {{"@FIELDS", fields},
                                          {"@PER", number(per_byte(product))},
                                          {"@MASK", number(mask)},
                                          {"@BITS", number(product.field_bits)}});
}

std::string pairs_text(const Product& product) {
  std::string fields;
  const int32_t bits = product.field_bits;
  for (int64_t f = 0; f < pairs(product); ++f) {
    fields += "    a = *x++;\n";
    for (const char* row : {"0", "1", "2"}) {
      const std::string value = std::string("v") + row;
      const std::string shifted = f == 0 ? value : value + " >> " + number(f * bits);
      const std::string field =
          bits == 8 ? "$_sxtb16(" + shifted + ")"
                    : (f == 0 ? shifted : "(" + shifted + ")") + format(" & 0x%08Xu", 0x10001u * ((1u << bits) - 1));
      fields += std::string("    s") + row + " = $_smlad(" + field + ", a, s" + row + ");\n";
    }
  }
  return fields;
}

/// The loads and the fields of a vector.
std::pair<std::string, std::string> vector_text(const Product& product) {
  const bool is_bytes = product.kernel == ProductKernel::kBytes, has_fields = product.has_fields();
  const std::string lane = is_bytes ? "8" : "16";
  const std::string kind = (has_fields ? "u" : "s") + lane;
  const std::string vector = (has_fields ? "uint" : "int") + lane + (is_bytes ? "x16_t" : "x8_t");
  std::string loads, fields;
  for (const char* row : {"0", "1", "2"})
    loads += "    const " + vector + " v" + row + " = vldrbq_" + kind + "(w" + (row[0] == '0' ? "" : row) + ");\n";
  if (has_fields)
    loads += "    const " + vector + " mask = vdupq_n_" + kind + "(" + number((1 << product.field_bits) - 1) + ");\n";
  for (int64_t f = 0; f < per_byte(product); ++f) {
    fields += std::string("    a = ") + (is_bytes ? "vldrbq_s8" : "vldrhq_s16") + "(x" +
              (f == 0 ? "" : " + " + number(f * lanes(product))) + ");\n";
    for (const char* row : {"0", "1", "2"}) {
      std::string field = std::string("v") + row;
      if (f > 0) field = "vshrq_n_" + kind + "(" + field + ", " + number(f * product.field_bits) + ")";
      if (has_fields) field = "vreinterpretq_s" + lane + "_" + kind + "(vandq_" + kind + "(" + field + ", mask))";
      fields += std::string("    s") + row + " = vmladavaq_s" + lane + "(s" + row + ", a, " + field + ");\n";
    }
  }
  return {loads, fields};
}

std::string vectors_text(const Product& product) {
  const auto [loads, fields] = vector_text(product);
  const bool is_bytes = product.kernel == ProductKernel::kBytes;
  const std::string mask = number((1 << product.field_bits) - 1);
  const std::string shift = product.has_fields()
                                ? "      const uint32_t shift = (i / @LANESu) * " + number(product.field_bits) + "u;\n"
                                : std::string();
  std::string text(kVectors);
  for (const std::string row : {"w2", "w1", "w"})
    text = fill(text, {{"@FIELD(" + row + ")", product.has_fields()
                                                   ? "(int32_t)(((uint32_t)" + row + "[lane] >> shift) & " + mask + "u)"
                                                   : row + "[lane]"}});
  return fill(text, {{"@FIELDS", fields},
                     {"@LOADS", loads},
                     {"@SHIFT", shift},
                     {"@ELEMENTS", number(lanes(product) * per_byte(product))},
                     {"@LANES", number(lanes(product))},
                     {"@V", is_bytes ? "int8x16_t" : "int16x8_t"},
                     {"@X", product.prepared_type()}});
}

}  // namespace

std::string Product::weight_type() const {
  if (kernel == ProductKernel::kPairs) return "uint32_t";
  if (field_bits == 16) return "int16_t";
  return field_bits == 8 ? "int8_t" : "uint8_t";
}

int64_t Product::row_elements() const {
  const int64_t words = divide_up(columns * field_bits, 32);
  if (kernel == ProductKernel::kPairs) return words;
  return field_bits == 16 ? words * 2 : words * 4;
}

int64_t Product::count() const {
  switch (kernel) {
    case ProductKernel::kPlain: return columns;
    case ProductKernel::kPairs: return divide_up(columns * field_bits, 32);
    case ProductKernel::kBytes:
    case ProductKernel::kHalves: break;
  }
  return divide_up(columns, lanes(*this) * per_byte(*this));
}

std::string Product::prepared_type() const {
  if (kernel == ProductKernel::kPairs) return "uint32_t";
  return kernel == ProductKernel::kBytes ? "int8_t" : "int16_t";
}

int64_t Product::prepared_elements() const {
  return count() * (kernel == ProductKernel::kPairs ? pairs(*this) : lanes(*this) * per_byte(*this));
}

int64_t Product::prepared_element_bytes() const {
  return kernel == ProductKernel::kPairs ? 4 : kernel == ProductKernel::kBytes ? 1 : 2;
}

std::string Product::prepared_name() const {
  return kernel == ProductKernel::kPairs ? "pairs" : kernel == ProductKernel::kBytes ? "bytes" : "halves";
}

std::string Product::key() const {
  const std::string bits = "_" + number(field_bits);
  if (is_prepared()) return prepared_name() + bits;
  return "plain" + bits + "_" + std::string(to_string(x)) + (is_wide ? "_64" : "");
}

Product choose_product(CTarget target, int32_t weight_bits, bool is_signed, Dtype x, Int128 largest_x, int64_t columns,
                       Int128 sum_bound) {
  Product product;
  product.field_bits = weight_bits <= 2 ? weight_bits : weight_bits <= 4 ? 4 : weight_bits <= 8 ? 8 : 16;
  product.x = x;
  product.columns = columns;
  if (product.has_fields() == is_signed)
    product.offset = (is_signed ? 1 : -1) * (int64_t{1} << (product.field_bits - 1));
  Int128 bound = sum_bound;
  if (product.needs_sum())  // of what is stored, and of what users subtract
    bound = std::max(bound, bound_multiply(bound_multiply(largest_x, columns), Int128{1} << product.field_bits));
  product.is_wide = !fits_s32(bound);
  if (product.is_wide || product.field_bits == 16 || x == Dtype::kU16) return product;
  if (target == CTarget::kCortexM4 || target == CTarget::kCortexM7 || target == CTarget::kCortexM33)
    product.kernel = ProductKernel::kPairs;
  if (target == CTarget::kCortexM55) product.kernel = x == Dtype::kS8 ? ProductKernel::kBytes : ProductKernel::kHalves;
  return product;
}

std::string add_weights(CProgram& program, const std::string& name, const Product& product, int64_t rows,
                        const std::function<int64_t(int64_t row, int64_t column)>& field) {
  if (product.field_bits == 16 || (product.field_bits == 8 && product.kernel != ProductKernel::kPairs)) {
    std::vector<int64_t> values(static_cast<size_t>(rows * product.row_elements()));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < product.columns; ++c)
        values[static_cast<size_t>(r * product.row_elements() + c)] = field(r, c);
    if (product.is_prepared()) values.resize(values.size() + static_cast<size_t>(lanes(product)));
    return program.add_array(product.field_bits == 16 ? Dtype::kS16 : Dtype::kS8, name, values, DataPart::kWeights);
  }
  const int64_t bits = product.field_bits, row_words = divide_up(product.columns * bits, 32);
  std::vector<uint32_t> words(static_cast<size_t>(rows * row_words));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < product.columns; ++c) {
      const uint32_t code = static_cast<uint32_t>(field(r, c)) & ((1u << bits) - 1);
      words[static_cast<size_t>(r * row_words + c * bits / 32)] |= code << (c * bits % 32);
    }
  }
  if (product.kernel == ProductKernel::kPairs) return program.add_words(name, words, DataPart::kWeights);
  std::vector<int64_t> bytes;
  for (const uint32_t word : words)
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(word >> shift & 255u);
  if (product.is_prepared()) bytes.resize(bytes.size() + static_cast<size_t>(lanes(product)));
  return program.add_array(Dtype::kU8, name, bytes, DataPart::kWeights);
}

std::string multiply(CProgram& program, const Product& product) {
  const std::string name = "$_multiply_" + product.key();
  const std::string target(to_string(program.target()));
  std::string text;
  switch (product.kernel) {
    case ProductKernel::kPlain:
      text = fill(std::string(kPlain), {{"@LOOP", plain_text(product)},
                                        {"@LAYOUT", product.has_fields() ? "A byte holds " + number(per_byte(product)) +
                                                                               " weights, the first in its lowest bits."
                                                                         : "A weight is an element."},
                                        {"@W", product.weight_type()},
                                        {"@X", c_type(product.x)},
                                        {"@S", product.sum()}});
      break;
    case ProductKernel::kPairs:
      program.add_function("$_smlad", fill(std::string(kPairHelpers), {{"@TARGET", target}}));
      if (product.field_bits == 8) program.add_function("$_sxtb16", std::string(kBytesHelper));
      text = fill(std::string(kPairs), {{"@FIELDS", pairs_text(product)},
                                        {"@WEIGHTS", number(32 / product.field_bits)},
                                        {"@DISTANCE", number(pairs(product))}});
      break;
    case ProductKernel::kBytes:
    case ProductKernel::kHalves:
      program.add_function("arm_mve.h", fill(std::string(kVectorHelpers), {{"@TARGET", target}}));
      text = fill(vectors_text(product), {{"@W", product.weight_type()}});
      break;
  }
  return program.add_function(name, fill(text, {{"@F", name}}));
}

std::string prepare(CProgram& program, const Product& product) {
  const std::string x(to_string(product.x));
  if (!product.is_prepared()) {
    const std::string name = "$_sum_" + x + (product.is_wide ? "_64" : "");
    return program.add_function(
        name, fill(std::string(kSum), {{"@F", name}, {"@X", c_type(product.x)}, {"@S", product.sum()}}));
  }
  const bool is_pairs = product.kernel == ProductKernel::kPairs, sums = product.needs_sum();
  const std::string name = std::string("$_prepare_") + (sums ? "and_sum_" : "") + product.key() + "_" + x;
  return program.add_function(
      name, fill(std::string(is_pairs ? kPreparePairs : kPrepareVectors),
                 {{"@F", name},
                  {"@X", c_type(product.x)},
                  {"@RETURNS", sums ? " Returns their sum." : ""},
                  {"@RESULT", sums ? "int32_t" : "void"},
                  {"@START", sums ? "  int32_t sum = 0;\n" : ""},
                  {"@ADD", !sums      ? ""
                           : is_pairs ? "      sum += a + b;\n"
                                      : "        sum += a;\n"},
                  {"@END", sums ? "  return sum;\n" : ""},
                  {"@DISTANCE", is_pairs ? number(pairs(product)) : std::string()},
                  {"@ELEMENTS", is_pairs ? std::string() : number(lanes(product) * per_byte(product))},
                  {"@PER", number(per_byte(product))},
                  {"@P", product.prepared_type()},
                  {"@LANES", is_pairs ? std::string() : number(lanes(product))}}));
}

}  // namespace isobit
