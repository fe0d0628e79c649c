// SPDX-License-Identifier: Apache-2.0
// Integers in float and double lanes.
#ifndef ISOBIT_CORE_MAGIC_H_
#define ISOBIT_CORE_MAGIC_H_

namespace isobit {

/// T + kMagic<T>, for an integer T of less than a quarter of it, has the integer in its low bits.
template <typename T>
inline constexpr T kMagic = 0;
template <>
inline constexpr float kMagic<float> = 12582912.0f;  // 1.5 * 2^23: one unit is one
template <>
inline constexpr double kMagic<double> = 6755399441055744.0;  // 1.5 * 2^52

/// The number with an unsigned integer T of 16 bits in its low bits: T + kFromCode<Real>.
template <typename T>
inline constexpr T kFromCode = 0;
template <>
inline constexpr float kFromCode<float> = 8388608.0f;  // 2^23
template <>
inline constexpr double kFromCode<double> = 4503599627370496.0;  // 2^52

}  // namespace isobit

#endif  // ISOBIT_CORE_MAGIC_H_
