/* SPDX-License-Identifier: Apache-2.0 */
/* Reads words letter by letter; g2p.py makes encoder.h and words.h. */
#include "encoder.h"
#include "machine.h"
#include "words.h"

static encoder_state state;
static encoder_scratch scratch;

int main(void)
{
  const uint32_t count = sizeof lengths / sizeof *lengths;
  const uint8_t *letter = letters;
  int failures = 0;
  if (encoder_selftest(&state, &scratch) >= 0) {
    machine_write("the self-test failed\n");
    return 1;
  }
  for (uint32_t w = 0; w < count; ++w) {
    uint32_t instructions, i, different = 0;
    encoder_init_state(&state);
    machine_start_count();
    for (i = 0; i < lengths[w]; ++i, ++letter)
      encoder_step(&state, &scratch, embedding + *letter * ENCODER_INPUTS, 0);
    instructions = machine_stop_count();
    for (i = 0; i < ENCODER_OUTPUTS; ++i) different += state.h_l0[i] != expected[w * ENCODER_OUTPUTS + i];
    machine_write(words[w]);
    machine_write(": ");
    machine_write_number(instructions / lengths[w]);
    machine_write(" instructions a letter, ");
    machine_write_number(different);
    machine_write(" codes differ from isobit\n");
    failures += different != 0;
  }
  return failures;
}
