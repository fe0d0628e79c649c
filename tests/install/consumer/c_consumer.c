/* SPDX-License-Identifier: Apache-2.0 */
/* c_consumer FOLDER: the C interface as a stranger would use it. Quantises, saves and reads weights, and runs a table.
 * Prints relu(3) as an integer; exit status 1 if anything is not as it should be. */
#include <stdio.h>
#include <string.h>

#include "isobit/isobit.h"

static int failed(int32_t status) {
  if (status != ISOBIT_OK) fprintf(stderr, "%s: %s\n", isobit_status_name(status), isobit_last_error());
  return status != ISOBIT_OK;
}

int main(int argc, char** argv) {
  static const float weights[8] = {7, -7, 3, 0, 1, -2, 5, -6};
  float read[8];
  float x = 3;
  float y = 0;
  char path[4096];
  isobit_low_bit* matrix = NULL;
  isobit_fp16_table* table = NULL;
  isobit_low_bit_options options = {0};
  options.struct_size = sizeof options;
  options.bits = 4;
  options.group = 8;
  options.scale_dtype = ISOBIT_F16;
  snprintf(path, sizeof path, "%s/weights.safetensors", argc > 1 ? argv[1] : ".");
  if (failed(isobit_low_bit_quantize(weights, ISOBIT_F32, 8, 1, 8, &options, NULL, &matrix))) return 1;
  if (failed(isobit_low_bit_save(matrix, "w", path))) return 1;
  isobit_low_bit_destroy(matrix);
  if (failed(isobit_low_bit_load(path, NULL, &matrix))) return 1;
  if (failed(isobit_low_bit_dequantize(matrix, read, 8, NULL))) return 1;
  isobit_low_bit_destroy(matrix);
  if (memcmp(read, weights, sizeof read) != 0) return 1;
  if (failed(isobit_fp16_table_builtin("relu", ISOBIT_FP16_F32, 0, &table))) return 1;
  if (failed(isobit_fp16_table_run(table, &x, ISOBIT_F32, &y, ISOBIT_F32, 1, NULL))) return 1;
  isobit_fp16_table_destroy(table);
  printf("%d\n", (int)y);
  return 0;
}
