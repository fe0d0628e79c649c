// SPDX-License-Identifier: Apache-2.0
// The baseline twin: plain C++ that any processor runs, on the same layout. A product and a sum are rounded
// separately, since a fused operation would be a call of the mathematical library here.
#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "core/hd.h"
#include "isobit/dtype.h"

namespace isobit {
namespace {

struct Vector {
  static constexpr int kLanes = 16;
  static constexpr int kUnits = 1;
  static constexpr int kFewRows = 1;
  static constexpr int kFewSums = 1;
  static constexpr int kPanelRows = 2, kPanelSums = 2;
  static constexpr int kLookUpBits = 4;
  struct Floats {
    float lane[kLanes];
  };
  struct Words {
    uint32_t lane[kLanes];
  };

  template <typename Result, typename Body>
  ISOBIT_HD static Result of_lanes(const Body& body) {
    Result result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = body(i);
    return result;
  }

  ISOBIT_HD static Floats set(float x) {
    return of_lanes<Floats>([&](int) { return x; });
  }
  ISOBIT_HD static Floats zero() { return set(0.0f); }
  ISOBIT_HD static Floats load(const float* p) {
    return of_lanes<Floats>([&](int i) { return p[i]; });
  }
  ISOBIT_HD static void store(float* p, const Floats& a) { std::memcpy(p, a.lane, sizeof a.lane); }
  ISOBIT_HD static void store_fours(float* p, int64_t stride, const Floats& a) {
    for (int i = 0; i < kLanes; i += 4) std::memcpy(p + i / 4 * stride, a.lane + i, 4 * sizeof(float));
  }
  ISOBIT_HD static void store_rows(float* p, int64_t stride, const Floats (&a)[4]) {
    for (int r = 0; r < 4; ++r) store_fours(p + 4 * r, stride, a[r]);
  }
  ISOBIT_HD static Words load_words(const uint32_t* p) {
    return of_lanes<Words>([&](int i) { return p[i]; });
  }
  template <int kCount>
  ISOBIT_HD static Words shift_right(const Words& a) {
    return of_lanes<Words>([&](int i) { return a.lane[i] >> kCount; });
  }
  ISOBIT_HD static Floats add(const Floats& a, const Floats& b) {
    return of_lanes<Floats>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  ISOBIT_HD static Floats sub(const Floats& a, const Floats& b) {
    return of_lanes<Floats>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  ISOBIT_HD static Floats min(const Floats& a, const Floats& b) {
    return of_lanes<Floats>([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  ISOBIT_HD static Floats max(const Floats& a, const Floats& b) {
    return of_lanes<Floats>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  ISOBIT_HD static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return of_lanes<Floats>([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  ISOBIT_HD static Floats one_nan(const Floats& a) {
    return of_lanes<Floats>([&](int i) { return a.lane[i] == a.lane[i] ? a.lane[i] : __builtin_nanf(""); });
  }
  ISOBIT_HD static Floats load_table(const float* values) { return load(values); }
  ISOBIT_HD static Floats look_up(const Floats& table, const Words& index) {
    return of_lanes<Floats>([&](int i) { return table.lane[index.lane[i] % 16]; });
  }
  ISOBIT_HD static Floats select(const Words& word, uint32_t mask, float bits) {
    return of_lanes<Floats>(
        [&](int i) { return __builtin_bit_cast(float, (word.lane[i] & mask) | __builtin_bit_cast(uint32_t, bits)); });
  }

  template <Dtype kDtype>
  ISOBIT_HD static Floats load_as(const void* from, int64_t index) {
    return of_lanes<Floats>([&](int i) {
      if constexpr (kDtype == Dtype::kF32) {
        return element<float>(from, index + i);
      } else {
        const auto half = element<uint16_t>(from, index + i);
        return kDtype == Dtype::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
      }
    });
  }

  template <Dtype kDtype>
  ISOBIT_HD static void store_as(void* to, int64_t index, const Floats& a) {
    if constexpr (kDtype == Dtype::kF32) {
      std::memcpy(static_cast<unsigned char*>(to) + 4 * index, a.lane, sizeof a.lane);
    } else {
      uint16_t half[kLanes];
      for (int i = 0; i < kLanes; ++i) half[i] = kDtype == Dtype::kF16 ? f32_to_f16(a.lane[i]) : f32_to_bf16(a.lane[i]);
      std::memcpy(static_cast<unsigned char*>(to) + 2 * index, half, sizeof half);
    }
  }

 private:
  template <typename T>
  ISOBIT_HD static T element(const void* from, int64_t index) {  // what was copied to bytes has no alignment
    T value;
    std::memcpy(&value, static_cast<const unsigned char*>(from) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
};

}  // namespace
}  // namespace isobit

#include "linear/float/body.h"

namespace isobit {

void float_linear_scalar(const FloatLinearArgs& args) { run_float_linear(args); }

}  // namespace isobit
