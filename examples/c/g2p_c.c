/* SPDX-License-Identifier: Apache-2.0 */
/* English spelling to phonemes in C99, with libisobit.so alone: the two GRUs of g2p_en as integer models, and its
 * output layer with 4-bit weights and 8-bit activations. README.md says where the files come from. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isobit/isobit.h"

enum { UNITS = 256, GRAPHEMES = 29, PHONEMES = 74, MAX_LETTERS = 64, MAX_PHONEMES = 20 };
enum { GRAPHEME_END = 2, GRAPHEME_A = 3, PHONEME_START = 2, PHONEME_END = 3 };

static const char* const kPhonemes[PHONEMES] = {
    "<pad>", "<unk>", "<s>", "</s>", "AA0", "AA1", "AA2", "AE0", "AE1", "AE2", "AH0", "AH1", "AH2", "AO0", "AO1",
    "AO2",   "AW0",   "AW1", "AW2",  "AY0", "AY1", "AY2", "B",   "CH",  "D",   "DH",  "EH0", "EH1", "EH2", "ER0",
    "ER1",   "ER2",   "EY0", "EY1",  "EY2", "F",   "G",   "HH",  "IH0", "IH1", "IH2", "IY0", "IY1", "IY2", "JH",
    "K",     "L",     "M",   "N",    "NG",  "OW0", "OW1", "OW2", "OY0", "OY1", "OY2", "P",   "R",   "S",   "SH",
    "T",     "TH",    "UH0", "UH1",  "UH2", "UW",  "UW0", "UW1", "UW2", "V",   "W",   "Y",   "Z",   "ZH"};

/* Ends the program with what the library says. */
static void check(int32_t status) {
  if (status == ISOBIT_OK) return;
  fprintf(stderr, "g2p_c: %s: %s\n", isobit_status_name(status), isobit_last_error());
  exit(2);
}

static void refuse(const char* what, const char* why) {
  fprintf(stderr, "g2p_c: %s: %s\n", what, why);
  exit(2);
}

/* The float32 array of that shape; columns 0: it has one dimension. */
static const float* find(const isobit_arrays* arrays, const char* name, int64_t rows, int64_t columns) {
  isobit_array_info info = {.struct_size = sizeof info};
  check(isobit_arrays_find(arrays, name, &info));
  if (info.dtype != ISOBIT_F32 || info.dimensions != (columns == 0 ? 1 : 2) || info.shape[0] != rows ||
      (columns != 0 && info.shape[1] != columns)) {
    refuse(name, "has another type or shape than in the checkpoint of g2p_en");
  }
  return info.data;
}

static isobit_gru* load_gru(const char* path) {
  isobit_gru* gru = NULL;
  isobit_gru_info info = {.struct_size = sizeof info};
  check(isobit_gru_load(path, NULL, &gru));
  check(isobit_gru_get_info(gru, &info));
  if (info.layers != 1 || info.directions != 1 || info.input_size != UNITS || info.hidden_size != UNITS) {
    refuse(path, "must be one layer 256 -> 256 of one direction");
  }
  return gru;
}

/* fc_w in 4 bits, groups of 64; rows of x are quantised to 8 bits inside. */
static isobit_linear* output_layer(const isobit_arrays* arrays) {
  const isobit_low_bit_options weights = {.struct_size = sizeof weights,
                                          .bits = 4,
                                          .group = 64,
                                          .kind = ISOBIT_SYMMETRIC,
                                          .method = ISOBIT_MSE,
                                          .scale_dtype = ISOBIT_F32};
  const isobit_linear_options options = {.struct_size = sizeof options,
                                         .activations = ISOBIT_ACTIVATIONS_INT8,
                                         .bias = find(arrays, "fc_b", PHONEMES, 0),
                                         .bias_count = PHONEMES};
  isobit_low_bit* matrix = NULL;
  isobit_linear* layer = NULL;
  check(isobit_low_bit_quantize(find(arrays, "fc_w", PHONEMES, UNITS), ISOBIT_F32, (int64_t)PHONEMES * UNITS, PHONEMES,
                                UNITS, &weights, NULL, &matrix));
  check(isobit_linear_create(matrix, &options, &layer));
  isobit_low_bit_destroy(matrix); /* the layer has packed it */
  return layer;
}

static int largest(const float* values, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

int main(int argc, char** argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: g2p_c CHECKPOINT.npz ENCODER.safetensors DECODER.safetensors WORD...\n");
    return 2;
  }
  isobit_arrays* arrays = NULL;
  check(isobit_arrays_load(argv[1], &arrays));
  const float* letters = find(arrays, "enc_emb", GRAPHEMES, UNITS);
  const float* sounds = find(arrays, "dec_emb", PHONEMES, UNITS);
  isobit_gru* encoder = load_gru(argv[2]);
  isobit_gru* decoder = load_gru(argv[3]);
  isobit_linear* output = output_layer(arrays);

  isobit_gru_state* heard = NULL;
  isobit_gru_state* said = NULL;
  isobit_gru_workspace* encoder_workspace = NULL;
  isobit_gru_workspace* decoder_workspace = NULL;
  isobit_linear_workspace* output_workspace = NULL;
  check(isobit_gru_state_create(encoder, 1, &heard));
  check(isobit_gru_state_create(decoder, 1, &said));
  check(isobit_gru_workspace_create(encoder, 1, MAX_LETTERS + 1, 1, &encoder_workspace));
  check(isobit_gru_workspace_create(decoder, 1, 1, 1, &decoder_workspace));
  check(isobit_linear_workspace_create(output, 1, 1, &output_workspace));

  static float x[(MAX_LETTERS + 1) * UNITS];
  static float y[(MAX_LETTERS + 1) * UNITS];
  for (int word = 4; word < argc; ++word) {
    const int64_t length = (int64_t)strlen(argv[word]);
    if (length == 0 || length > MAX_LETTERS || strspn(argv[word], "abcdefghijklmnopqrstuvwxyz") != (size_t)length) {
      refuse(argv[word], "a word must be 1 to 64 letters a-z");
    }
    const int64_t steps = length + 1;
    for (int64_t t = 0; t < steps; ++t) {
      const int code = t < length ? argv[word][t] - 'a' + GRAPHEME_A : GRAPHEME_END;
      memcpy(x + t * UNITS, letters + code * UNITS, UNITS * sizeof(float));
    }
    check(isobit_gru_state_reset(heard));
    check(isobit_gru_forward(encoder, x, steps * UNITS, y, steps * UNITS, steps, heard, encoder_workspace, NULL));
    check(isobit_gru_state_hand_over(heard, said));

    printf("%s:", argv[word]);
    int phoneme = PHONEME_START;
    for (int i = 0; i < MAX_PHONEMES; ++i) {
      float h[UNITS];
      float scores[PHONEMES];
      check(isobit_gru_forward(decoder, sounds + phoneme * UNITS, UNITS, h, UNITS, 1, said, decoder_workspace, NULL));
      check(
          isobit_linear_forward(output, h, ISOBIT_F32, UNITS, scores, ISOBIT_F32, PHONEMES, 1, output_workspace, NULL));
      phoneme = largest(scores, PHONEMES);
      if (phoneme == PHONEME_END) break;
      printf(" %s", kPhonemes[phoneme]);
    }
    printf("\n");
  }

  isobit_linear_workspace_destroy(output_workspace);
  isobit_gru_workspace_destroy(decoder_workspace);
  isobit_gru_workspace_destroy(encoder_workspace);
  isobit_gru_state_destroy(said);
  isobit_gru_state_destroy(heard);
  isobit_linear_destroy(output);
  isobit_gru_destroy(decoder);
  isobit_gru_destroy(encoder);
  isobit_arrays_destroy(arrays);
  return 0;
}
