// SPDX-License-Identifier: Apache-2.0
#include "bench/gru_cuda.h"

#include <array>
#include <cstddef>
#include <vector>

#include "bench/device_array.h"
#include "bench/random.h"
#include "isobit/cuda/timer.h"
#include "isobit/grid.h"

namespace isobit::bench {

Result<double> time_gru(const cuda::DeviceGru& gru, const DeviceGruCase& c) {
  const GruModel& model = gru.model();
  const auto x_call =
      static_cast<size_t>(c.steps * c.batch * model.input_size()) * size_in_bytes(model.input_grid().dtype());
  const auto y_call =
      static_cast<size_t>(c.steps * c.batch * model.output_size()) * size_in_bytes(model.output_grid().dtype());
  // Codes are those of random floats: the grid may be narrower than its type.
  Random random(7);
  const int64_t count = c.calls * c.steps * c.batch * model.input_size();
  std::vector<std::byte> codes(static_cast<size_t>(c.calls) * x_call);
  ISOBIT_RETURN_IF_ERROR(quantize(model.input_grid(), random.vector(count, 2.0f), codes.data(), "x"));
  DeviceArray x, y, workspace;
  std::array<DeviceArray, 2> states;
  ISOBIT_RETURN_IF_ERROR(x.write(codes));
  ISOBIT_RETURN_IF_ERROR(y.allocate(static_cast<size_t>(c.calls) * y_call));
  ISOBIT_RETURN_IF_ERROR(workspace.allocate(static_cast<size_t>(gru.workspace_bytes(c.batch, c.steps))));
  for (DeviceArray& state : states) {
    ISOBIT_RETURN_IF_ERROR(state.allocate(static_cast<size_t>(gru.state_bytes(c.batch))));
    ISOBIT_RETURN_IF_ERROR(gru.initial_state(state.bytes(), c.batch, nullptr));
  }
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "the first state"));
  const auto work = [&](cudaStream_t stream) -> Status {
    for (size_t call = 0; call < static_cast<size_t>(c.calls); ++call) {
      RunOptions options{.kernel = c.kernel, .stream = stream, .whole_sequence = true};
      if (c.two_states) options.next_state = states[(call + 1) % 2].bytes();
      ISOBIT_RETURN_IF_ERROR(
          gru.forward_codes(x.bytes().subspan(call * x_call, x_call), y.bytes().subspan(call * y_call, y_call), c.steps,
                            c.batch, states[c.two_states ? call % 2 : 0].bytes(), workspace.bytes(), options));
    }
    return {};
  };
  return cuda::median_microseconds(work, {.min_replays = 5, .min_seconds = c.min_time});
}

}  // namespace isobit::bench
