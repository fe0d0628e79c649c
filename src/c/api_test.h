// SPDX-License-Identifier: Apache-2.0
// What tests of libisobit.so share: handles that end themselves, refusals by their whole message.
#ifndef ISOBIT_C_API_TEST_H_
#define ISOBIT_C_API_TEST_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "isobit/isobit.h"

#define EXPECT_DONE(call) EXPECT_EQ(call, ISOBIT_OK) << isobit_last_error()
#define ASSERT_DONE(call) ASSERT_EQ(call, ISOBIT_OK) << isobit_last_error()

namespace isobit {

/// A handle that its _destroy ends, also where it is NULL because nothing was made.
template <typename Handle, auto Destroy>
class Owned {
 public:
  /// For a function that makes one; ends the one before.
  Handle** out() {
    Destroy(std::exchange(raw_, nullptr));
    return &raw_;
  }
  [[nodiscard]] Handle* get() const { return raw_; }
  operator Handle*() const { return raw_; }  // NOLINT: as C passes it
  Owned() = default;
  ~Owned() { Destroy(raw_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

 private:
  Handle* raw_ = nullptr;
};
using Pool = Owned<isobit_pool, isobit_pool_destroy>;
using Matrix = Owned<isobit_low_bit, isobit_low_bit_destroy>;
using LinearScratch = Owned<isobit_linear_workspace, isobit_linear_workspace_destroy>;

/// The call fails with that code and a message that holds `words`.
inline void refused(int32_t status, int32_t code, const std::string& words) {
  EXPECT_EQ(status, code) << words;
  EXPECT_NE(std::string(isobit_last_error()).find(words), std::string::npos) << isobit_last_error();
}
inline void refused(int32_t status, const std::string& words) { refused(status, ISOBIT_INVALID_ARGUMENT, words); }

/// A call that fails, and its whole message.
struct Refusal {
  std::string message;
  std::function<int32_t()> call;
  int32_t code = ISOBIT_INVALID_ARGUMENT;
};
inline void expect_refusals(std::initializer_list<Refusal> refusals) {
  for (const Refusal& refusal : refusals) {
    EXPECT_EQ(refusal.call(), refusal.code) << refusal.message;
    EXPECT_EQ(std::string(isobit_last_error()), refusal.message);
  }
}

template <typename T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

inline std::string address_text(const void* address) { return std::to_string(reinterpret_cast<uintptr_t>(address)); }

/// The refusal of a structure T whose struct_size is one less than it must be.
template <typename T>
std::string too_small(const std::string& name) {
  return name + "->struct_size is " + std::to_string(sizeof(T) - 1) + ", must be " + std::to_string(sizeof(T)) +
         " (sizeof of the structure), or for later versions at most 1024";
}

inline std::vector<float> random_floats(Random& random, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = static_cast<float>(random.between(-4000, 4000)) / 1000.0f;
  return out;
}

}  // namespace isobit

#endif  // ISOBIT_C_API_TEST_H_
