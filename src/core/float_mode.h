// SPDX-License-Identifier: Apache-2.0
// Results must not depend on the floating-point modes that a caller's thread happens to have: audio and graphics code
// often flushes subnormals to zero, and some programs leave another rounding on. Each public function that computes
// with floats begins with a DefaultFloatMode, and so does each part of a ThreadPool, whose threads have the modes of
// the thread that made them.
#ifndef ISOBIT_CORE_FLOAT_MODE_H_
#define ISOBIT_CORE_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace isobit {

/// While it lives: rounding to nearest even, subnormals kept, on this thread. Then what the caller had again. Registers
/// are written only where the modes differ. Which exceptions trap stays the caller's choice, and flags that were raised
/// stay raised.
class DefaultFloatMode {
 public:
  DefaultFloatMode();
  ~DefaultFloatMode();
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  /// Compilers do not know that arithmetic depends on the modes, but what is read from memory stays after this, and
  /// what is written before. Results in registers: in_default_float_mode().
  static void keep_order() { __asm__ __volatile__("" ::: "memory"); }

#if defined(__x86_64__)
  static constexpr uint32_t kModes = 0xe040;        // of MXCSR: flush to zero, rounding, denormals are zero
  static constexpr uint16_t kX87Rounding = 0x0c00;  // fesetround() sets it too, and printf rounds by it
  static uint16_t x87_control() {
    uint16_t control;
    __asm__ __volatile__("fnstcw %0" : "=m"(control));
    return control;
  }
  static void set_x87_control(uint16_t control) { __asm__ __volatile__("fldcw %0" : : "m"(control)); }
  uint32_t modes_ = _mm_getcsr() & kModes;
  uint16_t x87_rounding_ = x87_control() & kX87Rounding;
#elif defined(__aarch64__)
  // Of FPCR: default NaN, flush to zero (also of float16), rounding, and the three of FEAT_AFP.
  static constexpr uint64_t kModes = 0x03c80007;
  static uint64_t control() {
    uint64_t value;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(uint64_t value) { __asm__ __volatile__("msr fpcr, %0" : : "r"(value)); }
  uint64_t modes_ = control() & kModes;
#else
  std::fenv_t environment_;
#endif
};

#if defined(__x86_64__)
inline DefaultFloatMode::DefaultFloatMode() {
  if (modes_ != 0) _mm_setcsr(_mm_getcsr() & ~kModes);
  if (x87_rounding_ != 0) set_x87_control(static_cast<uint16_t>(x87_control() & ~kX87Rounding));
  keep_order();
}
inline DefaultFloatMode::~DefaultFloatMode() {
  keep_order();
  if (modes_ != 0) _mm_setcsr(_mm_getcsr() | modes_);
  if (x87_rounding_ != 0) set_x87_control(static_cast<uint16_t>(x87_control() | x87_rounding_));
}
#elif defined(__aarch64__)
inline DefaultFloatMode::DefaultFloatMode() {
  if (modes_ != 0) set_control(control() & ~kModes);
  keep_order();
}
inline DefaultFloatMode::~DefaultFloatMode() {
  keep_order();
  if (modes_ != 0) set_control(control() | modes_);
}
#else
inline DefaultFloatMode::DefaultFloatMode() {
  std::fegetenv(&environment_);
  std::fesetenv(FE_DFL_ENV);
  keep_order();
}
inline DefaultFloatMode::~DefaultFloatMode() {
  keep_order();
  std::feupdateenv(&environment_);
}
#endif

/// body() in the default modes, for functions whose result is a number: it is complete before they end.
template <typename Body>
auto in_default_float_mode(const Body& body) {
  const DefaultFloatMode mode;
  auto result = body();
  __asm__ __volatile__("" : "+m"(result));
  return result;
}

}  // namespace isobit

#endif  // ISOBIT_CORE_FLOAT_MODE_H_
