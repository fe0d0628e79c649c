// SPDX-License-Identifier: Apache-2.0
// Under a sanitizer random tests repeat less often: all that it looks for is in every case, and each takes long.
#ifndef ISOBIT_TESTING_SANITIZED_H_
#define ISOBIT_TESTING_SANITIZED_H_

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ISOBIT_TESTING_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ISOBIT_TESTING_SANITIZED
#endif

namespace isobit::testing {

#if defined(ISOBIT_TESTING_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_SANITIZED_H_
