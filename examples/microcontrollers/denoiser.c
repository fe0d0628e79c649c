/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of speech, one after the other; denoiser.py makes denoiser.h and frames.h. */
#include "denoiser.h"
#include "machine.h"
#include "frames.h"

static denoiser_state state;
static denoiser_scratch scratch;

int main(void)
{
  const uint32_t count = sizeof frames / sizeof *frames / DENOISER_INPUTS;
  uint32_t instructions = 0, different = 0;
  if (denoiser_selftest(&state, &scratch) >= 0) {
    machine_write("the self-test failed\n");
    return 1;
  }
  denoiser_init_state(&state);
  for (uint32_t t = 0; t < count; ++t) {
    machine_start_count();
    denoiser_step(&state, &scratch, frames + t * DENOISER_INPUTS, 0);
    instructions += machine_stop_count();
    for (uint32_t i = 0; i < DENOISER_OUTPUTS; ++i) different += state.h_l1[i] != expected[t * DENOISER_OUTPUTS + i];
  }
  machine_write_number(count);
  machine_write(" frames: ");
  machine_write_number(instructions / count);
  machine_write(" instructions a frame, which lasts 10 ms; ");
  machine_write_number(different);
  machine_write(" codes differ from isobit\n");
  return different != 0;
}
