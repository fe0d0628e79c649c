// SPDX-License-Identifier: Apache-2.0
// Every product of floats below is one float32 operation, rounded to nearest even; docs/formats.md has the same
// formulas. Which bits are which element is the format's own choice.
#include "io/gguf/types.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/half.h"

namespace isobit {

namespace {

float f16_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return f16_to_f32(bits);
}

float s8_at(const uint8_t* byte) { return static_cast<float>(static_cast<int8_t>(*byte)); }

// Element i of a super-block of 2-bit codes: each half has 32 bytes, whose bits 0-1 are its first 32 elements.
uint8_t code2(const uint8_t* codes, int i) {
  return static_cast<uint8_t>(codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
}

void split_q4_0(const uint8_t* block, float* scales, float*, uint8_t* codes) {
  scales[0] = f16_at(block);
  for (int i = 0; i < 16; ++i) {
    codes[i] = block[2 + i] & 15;
    codes[i + 16] = block[2 + i] >> 4;
  }
}

void split_q4_1(const uint8_t* block, float* scales, float* offsets, uint8_t* codes) {
  offsets[0] = f16_at(block + 2);
  split_q4_0(block + 2, scales, offsets, codes);
  scales[0] = f16_at(block);
}

/// Bit i of `bits` is the fifth of element i.
void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (bits[i / 8] >> (i % 8) & 1) << 4);
}

// Q4_0 and Q4_1 with 4 bytes more between the float16 numbers and the low bits.
void split_q5_0(const uint8_t* block, float* scales, float* offsets, uint8_t* codes) {
  split_q4_0(block + 4, scales, offsets, codes);
  scales[0] = f16_at(block);
  add_fifth_bits(block + 2, codes);
}

void split_q5_1(const uint8_t* block, float* scales, float* offsets, uint8_t* codes) {
  split_q4_0(block + 6, scales, offsets, codes);
  scales[0] = f16_at(block);
  offsets[0] = f16_at(block + 2);
  add_fifth_bits(block + 4, codes);
}

void split_q8_0(const uint8_t* block, float* scales, float*, uint8_t* codes) {
  scales[0] = f16_at(block);
  for (int i = 0; i < 32; ++i) codes[i] = block[2 + i] ^ 128;
}

void split_q2_k(const uint8_t* block, float* scales, float* offsets, uint8_t* codes) {
  const float scale = f16_at(block + 80), minimum = f16_at(block + 82);
  for (int group = 0; group < 16; ++group) {  // low 4 bits a scale, high 4 a minimum
    scales[group] = scale * static_cast<float>(block[group] & 15);
    offsets[group] = -(minimum * static_cast<float>(block[group] >> 4));
  }
  for (int i = 0; i < kMaxGgufBlock; ++i) codes[i] = code2(block + 16, i);
}

void split_q3_k(const uint8_t* block, float* scales, float*, uint8_t* codes) {
  const uint8_t* packed = block + 96;  // 16 scales of 6 bits: the upper 2 bits are apart
  const float scale = f16_at(block + 108);
  for (int group = 0; group < 16; ++group) {
    const int low = packed[group % 8] >> (group / 8 * 4) & 15, high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
    scales[group] = scale * static_cast<float>((low | high << 4) - 32);
  }
  for (int i = 0; i < kMaxGgufBlock; ++i)
    codes[i] = static_cast<uint8_t>(code2(block + 32, i) | (block[i % 32] >> (i / 32) & 1) << 2);
}

/// What Q4_K and Q5_K begin with: 8 scales and 8 minima of 6 bits; the upper 2 bits of the last four are apart.
void split_k_scales(const uint8_t* block, float* scales, float* offsets) {
  const float scale = f16_at(block), minimum = f16_at(block + 2);
  const uint8_t* packed = block + 4;
  for (int group = 0; group < 8; ++group) {
    int scale_code = packed[group] & 63, minimum_code = packed[group + 4] & 63;
    if (group >= 4) {
      scale_code = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
      minimum_code = packed[group + 4] >> 4 | (packed[group] >> 6 << 4);
    }
    scales[group] = scale * static_cast<float>(scale_code);
    offsets[group] = -(minimum * static_cast<float>(minimum_code));
  }
}

/// Element i of a super-block of 4-bit codes: each quarter has 32 bytes, whose low halves are its first 32 elements.
uint8_t code4(const uint8_t* codes, int i) {
  return static_cast<uint8_t>(codes[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15);
}

void split_q4_k(const uint8_t* block, float* scales, float* offsets, uint8_t* codes) {
  split_k_scales(block, scales, offsets);
  for (int i = 0; i < kMaxGgufBlock; ++i) codes[i] = code4(block + 16, i);
}

void split_q5_k(const uint8_t* block, float* scales, float* offsets, uint8_t* codes) {
  split_k_scales(block, scales, offsets);
  for (int i = 0; i < kMaxGgufBlock; ++i)
    codes[i] = static_cast<uint8_t>(code4(block + 48, i) | (block[16 + i % 32] >> (i / 32) & 1) << 4);
}

void split_q6_k(const uint8_t* block, float* scales, float*, uint8_t* codes) {
  const uint8_t* low = block;  // 4 bits of each code; its upper 2 bits lie as codes of 2 bits do
  const uint8_t* high = block + 128;
  const float scale = f16_at(block + 208);
  for (int group = 0; group < 16; ++group) scales[group] = scale * s8_at(block + 192 + group);
  for (int i = 0; i < kMaxGgufBlock; ++i) {
    const int nibble = low[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
    codes[i] = static_cast<uint8_t>(nibble | (code2(high, i) << 4));
  }
}

// The numbers that 4 bits stand for, plus 128.
constexpr uint8_t kIq4Codes[] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

void split_iq4_nl(const uint8_t* block, float* scales, float* offsets, uint8_t* codes) {
  split_q4_0(block, scales, offsets, codes);
  for (int i = 0; i < 32; ++i) codes[i] = kIq4Codes[codes[i]];
}

void split_tq2_0(const uint8_t* block, float* scales, float*, uint8_t* codes) {
  scales[0] = f16_at(block + 64);
  for (int i = 0; i < kMaxGgufBlock; ++i) codes[i] = code2(block, i);
}

constexpr GgufQuantization kQ4_0 = {4, 32, 8, false, Dtype::kF16, split_q4_0};
constexpr GgufQuantization kQ4_1 = {4, 32, 0, true, Dtype::kF16, split_q4_1};
constexpr GgufQuantization kQ5_0 = {5, 32, 16, false, Dtype::kF16, split_q5_0};
constexpr GgufQuantization kQ5_1 = {5, 32, 0, true, Dtype::kF16, split_q5_1};
constexpr GgufQuantization kQ8_0 = {8, 32, 128, false, Dtype::kF16, split_q8_0};
constexpr GgufQuantization kQ2_K = {2, 16, 0, true, Dtype::kF32, split_q2_k};
constexpr GgufQuantization kQ3_K = {3, 16, 4, false, Dtype::kF32, split_q3_k};
constexpr GgufQuantization kQ4_K = {4, 32, 0, true, Dtype::kF32, split_q4_k};
constexpr GgufQuantization kQ5_K = {5, 32, 0, true, Dtype::kF32, split_q5_k};
constexpr GgufQuantization kQ6_K = {6, 16, 32, false, Dtype::kF32, split_q6_k};
constexpr GgufQuantization kIQ4_NL = {8, 32, 128, false, Dtype::kF16, split_iq4_nl};
constexpr GgufQuantization kTQ2_0 = {2, 256, 1, false, Dtype::kF16, split_tq2_0};

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, Dtype::kF32, nullptr},
    {1, "F16", 1, 2, Dtype::kF16, nullptr},
    {2, "Q4_0", 32, 18, {}, &kQ4_0},
    {3, "Q4_1", 32, 20, {}, &kQ4_1},
    {6, "Q5_0", 32, 22, {}, &kQ5_0},
    {7, "Q5_1", 32, 24, {}, &kQ5_1},
    {8, "Q8_0", 32, 34, {}, &kQ8_0},
    {9, "Q8_1", 32, 36, {}, nullptr},
    {10, "Q2_K", 256, 84, {}, &kQ2_K},
    {11, "Q3_K", 256, 110, {}, &kQ3_K},
    {12, "Q4_K", 256, 144, {}, &kQ4_K},
    {13, "Q5_K", 256, 176, {}, &kQ5_K},
    {14, "Q6_K", 256, 210, {}, &kQ6_K},
    {15, "Q8_K", 256, 292, {}, nullptr},
    {16, "IQ2_XXS", 256, 66, {}, nullptr},
    {17, "IQ2_XS", 256, 74, {}, nullptr},
    {18, "IQ3_XXS", 256, 98, {}, nullptr},
    {19, "IQ1_S", 256, 50, {}, nullptr},
    {20, "IQ4_NL", 32, 18, {}, &kIQ4_NL},
    {21, "IQ3_S", 256, 110, {}, nullptr},
    {22, "IQ2_S", 256, 82, {}, nullptr},
    {23, "IQ4_XS", 256, 136, {}, nullptr},
    {24, "I8", 1, 1, {}, nullptr},
    {25, "I16", 1, 2, {}, nullptr},
    {26, "I32", 1, 4, {}, nullptr},
    {27, "I64", 1, 8, {}, nullptr},
    {28, "F64", 1, 8, {}, nullptr},
    {29, "IQ1_M", 256, 56, {}, nullptr},
    {30, "BF16", 1, 2, Dtype::kBF16, nullptr},
    {34, "TQ1_0", 256, 54, {}, nullptr},
    {35, "TQ2_0", 256, 66, {}, &kTQ2_0},
    {39, "MXFP4", 32, 17, {}, nullptr},
    {40, "NVFP4", 64, 36, {}, nullptr},
    {41, "Q1_0", 128, 18, {}, nullptr},
};

template <typename Matches>
const GgufType* find_type(Matches matches) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), matches);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  return find_type([id](const GgufType& type) { return type.id == id; });
}

const GgufType* find_gguf_type(std::string_view name) {
  return find_type([name](const GgufType& type) { return type.name == name; });
}

std::string readable_gguf_types() {
  std::string names;
  for (const GgufType& type : kTypes) {
    if (type.dtype || type.quantization != nullptr) names += (names.empty() ? "" : " ") + std::string(type.name);
  }
  return names;
}

}  // namespace isobit
