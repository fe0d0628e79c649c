// SPDX-License-Identifier: Apache-2.0
// What may not be skipped.
#ifndef ISOBIT_TESTING_REQUIRED_H_
#define ISOBIT_TESTING_REQUIRED_H_

#include <cstdlib>
#include <string>

#include "isobit/cpu.h"

namespace isobit::testing {

/// Whether ISOBIT_REQUIRE names the path: a test that it cannot run is then a failure.
inline bool required(CpuPath path) {
  const char* names = std::getenv("ISOBIT_REQUIRE");
  return names != nullptr &&
         ("," + std::string(names) + ",").find("," + std::string(to_string(path)) + ",") != std::string::npos;
}

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_REQUIRED_H_
