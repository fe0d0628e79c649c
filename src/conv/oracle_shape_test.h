// SPDX-License-Identifier: Apache-2.0
// Shapes of convolutions in the vectors of the oracle, for tests.
#ifndef ISOBIT_CONV_ORACLE_SHAPE_TEST_H_
#define ISOBIT_CONV_ORACLE_SHAPE_TEST_H_

#include <cstdint>

#include "isobit/conv.h"
#include "testing/oracle.h"

namespace isobit::testing {

/// Of a case; x is its nested list of images.
inline ConvShape conv_shape_of(const Json& one, int64_t outputs, int64_t channels) {
  ConvShape shape{.channels = channels, .outputs = outputs, .groups = one.at("groups")};
  const auto axis = [&](size_t i) {
    return ConvAxis{.kernel = one.at("kernel").at(i),
                    .stride = one.at("stride").at(i),
                    .dilation = one.at("dilation").at(i),
                    .pad_before = one.at("pad").at(i).at(0),
                    .pad_after = one.at("pad").at(i).at(1),
                    .more = one.contains("more") ? one.at("more").at(i).get<int64_t>() : 0};
  };
  shape.rows = axis(0);
  shape.columns = axis(1);
  shape.transposed = one.contains("more");
  return shape;
}

inline ImageSize image_size_of(const Json& images) {
  return {static_cast<int64_t>(images.at(0).size()), static_cast<int64_t>(images.at(0).at(0).size())};
}
inline int64_t channels_of(const Json& images) { return static_cast<int64_t>(images.at(0).at(0).at(0).size()); }

}  // namespace isobit::testing

#endif  // ISOBIT_CONV_ORACLE_SHAPE_TEST_H_
