// SPDX-License-Identifier: Apache-2.0
// gru_products: its launches.
#include <gtest/gtest.h>

#include <cstddef>

#include "gru/cuda/gru_test.h"
#include "gru/random_model.h"
#include "isobit/cuda/gru.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

/// A step of `products` is one launch where x and h are bytes of signed codes in aligned rows, and one more pads what
/// is not, or a state that the step writes over.
TEST_F(DeviceGrus, AlignedStepsOfProductsAreOneLaunch) {
  struct Size {
    int64_t input, hidden, batch, steps;
    int32_t x_bits, h_bits;
    bool two_states, batch_first;
    size_t launches;
  };
  constexpr Size kSizes[] = {{512, 512, 70, 1, 8, 8, true, false, 1},  {512, 512, 70, 1, 8, 8, false, false, 2},
                             {528, 272, 64, 1, 8, 8, true, true, 1},   {272, 512, 130, 2, 8, 8, true, false, 2},
                             {272, 512, 130, 2, 8, 8, false, true, 2}, {512, 528, 33, 3, 8, 8, true, false, 3},
                             {512, 528, 33, 3, 8, 8, false, false, 4}, {272, 512, 65, 4, 8, 8, true, true, 4},
                             {500, 512, 70, 4, 8, 8, true, false, 8},  {512, 500, 70, 3, 8, 8, true, false, 6},
                             {500, 512, 64, 4, 8, 8, true, false, 8},  {500, 512, 9, 3, 8, 8, true, true, 6},
                             {528, 512, 9, 4, 8, 8, false, true, 4},   {512, 512, 257, 3, 8, 8, true, false, 3},
                             {512, 512, 70, 3, 16, 8, true, false, 6}, {512, 512, 70, 3, 8, 16, true, false, 6}};
  uint64_t seed = 9900;
  for (const Size& size : kSizes)
    for (const bool is_signed : {true, false}) {
      if (hidden_from_sanitizer("products")) continue;
      RandomShape shape;
      shape.input = size.input;
      shape.hidden = size.hidden;
      shape.x_bits = size.x_bits;
      shape.h_bits = size.h_bits;
      Case c = case_of(++seed, shape, size.batch, size.steps);
      const GruLayerParameters* layer = &c.model.parameters().layers.front();
      while (layer->grids[kX].is_signed != is_signed || layer->grids[kH].is_signed != is_signed) {
        c = case_of(++seed, shape, size.batch, size.steps);
        layer = &c.model.parameters().layers.front();
      }
      c.two_states = size.two_states;
      c.batch_first = size.batch_first;
      c.fast_host = true;
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0) + (is_signed ? ", signed" : ", unsigned"));
      compare(c, "products");
      if (!must_run("products", size.hidden)) continue;
      const Result<DeviceGru> gru = DeviceGru::create(c.model);
      ASSERT_TRUE(gru.ok()) << gru.status().message();
      const int64_t codes = size.steps * size.batch;
      GuardedDeviceBuffer x(codes * size.input * size_of(c.model.input_grid()));
      GuardedDeviceBuffer y(codes * size.hidden * size_of(c.model.output_grid()));
      GuardedDeviceBuffer state(gru->state_bytes(size.batch)), next(gru->state_bytes(size.batch));
      GuardedDeviceBuffer workspace(gru->workspace_bytes(size.batch, size.steps));
      RunOptions options{.whole_sequence = true};
      options.kernel = "products";
      options.batch_first = size.batch_first;
      if (size.two_states) options.next_state = next.bytes();
      const size_t launches = captured_kernels(stream_, [&](cudaStream_t stream) {
                                options.stream = stream;
                                return gru->forward_codes(x.bytes(), y.bytes(), size.steps, size.batch, state.bytes(),
                                                          workspace.bytes(), options);
                              }).size();
      EXPECT_EQ(launches, is_signed ? size.launches : 2 * static_cast<size_t>(size.steps));
    }
  if (must_run_persistent() && !hidden_from_sanitizer("products")) {
    EXPECT_EQ(runs_["products"], static_cast<int>(2 * std::size(kSizes)));
  }
}

}  // namespace
}  // namespace isobit::cuda
