// SPDX-License-Identifier: Apache-2.0
#include "gru/cuda/choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gru/cuda/cluster.h"
#include "gru/cuda/grid.h"
#include "gru/cuda/gru.h"
#include "gru/cuda/persistent.h"
#include "gru/cuda/portable.h"
#include "gru/cuda/products.h"
#include "gru/cuda/step_tile.h"

namespace isobit::cuda {
namespace {

/// Where gru_portable is faster than the grid kernels, H = 1040: with several teams, bytes of 9 to 16 sequences (on an
/// H200 0.88 of the time), or the state of two bytes of 5 to 8 (0.95 to 0.96; on an H100 of 2 to 6 steps 1.01 to 1.05).
bool takes_portable(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  if (!layer.grid || layer.ratios.h == RatioType::kDouble || layer.portable.teams < 2) return false;
  return layer.h_planes == 2 ? batch > 4 && batch <= 8 && steps > 6 : batch > 8 && batch <= 16;
}

/// Fewer steps are those of `products` or `step`: a run of `persistent` begins with a product and with reading R. To so
/// many hidden units and sequences; the first row that fits. wide: of h of two bytes. Beside each the time of
/// `persistent` by that of the faster of the others, for numbers of steps on both sides of the row's, with H of 257 to
/// 1024 how many sizes were timed; after a semicolon of h of two bytes (isobit bench gru --device cuda --mode sequence
/// --steps T --kernel persistent,products,step, or with the form that fastest_form takes). Short times differ by up to
/// a third from run to run, which the least and the largest of many show. Two figures are those of the smaller and the
/// larger H timed, or of 1 and 4 sequences where a row says so. On an H200: H to 256 of more than 256 sequences, H
/// above 1024 of more than 127; others on H100s.
struct FewestSteps {
  int64_t hidden, batch, steps, wide;
};
constexpr FewestSteps kFewestSteps[] = {
    {256, 64, 3, 3},          // 2: 0.99 to 1.17, 3: 0.79 to 1.01; 2: 0.98 to 1.31, 3: 0.76 to 1.04
    {128, 192, 3, 3},         // of 96 to 192: 3: 0.72 to 1.01; 0.81 to 1.02
    {256, 895, 4, 4},         // of 256: 3: 1.06 to 1.13, 4: 0.88 to 0.97; 3: 1.02 to 1.07
                              // H = 256, of 96 to 192: 3: 1.04 to 1.12; 0.97 to 1.06
    {1024, 8, 5, 4},          // 4: 1.01 to 1.18 (28), 5: 0.91 to 1.06 (15); 3: 0.92 to 1.29 (25), 4: 0.85 to 1.09 (27)
    {512, 27, 4, 4},          // 3: 0.97 to 1.70 (25), 4: 0.81 to 1.05 (22); 3: 0.89 to 1.13 (19), 4: 0.56 to 0.98 (20)
    {1024, 19, 4, 3},         // 3: 0.95 to 1.53 (26), 4: 0.78 to 1.07 (30); 2: 1.01 to 1.85 (16), 3: 0.80 to 1.14 (29)
    {400, 208, 4, 3},         // 3: 0.93 to 1.16 (45), 4: 0.76 to 1.04 (34); 2: 1.04 to 1.29 (15), 3: 0.82 to 1.18 (35)
    {512, 80, 3, 3},          // 2: 1.08 to 1.26 (6), 3: 0.92 to 1.03 (8); 2: 0.91 to 1.24 (7), 3: 0.76 to 0.96 (10)
    {512, 128, 4, 3},         // 3: 0.99 to 1.09 (9), 4: 0.81 to 0.96 (10); 2: 1.11 to 1.38 (7), 3: 0.89 to 1.02 (8)
    {512, 640, 3, 3},         // 2: 1.11 to 1.26 (10), 3: 0.87 to 1.08 (27); 2: 1.01 to 1.19 (8), 3: 0.79 to 1.00 (23)
    {576, 64, 3, 3},          // 2: 1.26 to 1.29 (3), 3: 0.85 to 0.99 (4); 2: 0.92 to 1.34 (11), 3: 0.74 to 0.97 (9)
    {704, 56, 3, 2},          // 2: 1.05 to 1.22 (9), 3: 0.77 to 1.01 (11); 2: 0.89 to 1.05 (9)
    {1024, 56, 3, 3},         // 2: 1.15 to 1.42 (15), 3: 0.88 to 1.05 (34); 2: 0.74 to 1.16 (14), 3: 0.84 to 0.95 (34)
    {1024, 64, 4, 3},         // 3: 1.02 to 1.12 (10), 4: 0.89 to 0.92 (10); 2: 1.05 to 1.26 (8), 3: 0.92 to 1.02 (10)
    {1024, 80, 3, 3},         // 2: 1.13 to 1.22 (7), 3: 0.83 to 1.10 (14); 2: 1.04 to 1.13 (3), 3: 0.73 to 1.01 (13)
    {928, 128, 4, 4},         // 3: 0.96 to 1.30 (29), 4: 0.84 to 1.00 (27); 3: 0.93 to 1.36 (50), 4: 0.80 to 0.99 (27)
    {1024, 168, 3, 3},        // 2: 1.17 to 1.36 (28), 3: 0.76 to 1.05 (39); 2: 1.04 to 1.27 (22), 3: 0.84 to 1.04 (41)
    {928, 192, 4, 4},         // 3: 1.07 to 1.19 (14), 4: 0.85 to 1.01 (15); 3: 0.92 to 1.13 (15), 4: 0.79 to 1.00 (15)
    {704, 224, 5, 4},         // 4: 0.96 to 1.07 (6); 3: 0.92 to 1.16 (7), 4: 0.91 to 1.04 (6)
    {576, INT64_MAX, 5, 4},   // 4: 0.95 to 1.08 (8), 5: 0.87 (3); 3: 1.07 to 1.15 (3), 4: 0.93 to 1.04 (2)
    {768, 256, 5, 6},         // 4: 0.98 to 1.16 (10), 5: 1.00 to 1.05 (6); 5: 0.90 to 1.31 (6), 6: 0.85 to 1.04 (9)
    {928, 352, 5, 5},         // 4: 0.99 to 1.20 (27), 5: 0.77 to 1.01 (19); 4: 0.92 to 1.13 (15), 5: 0.85 to 1.03 (12)
    {1024, 336, 4, 3},        // 3: 1.00 to 1.10 (15), 4: 0.92 to 1.03 (12); 2: 1.06 to 1.15 (6), 3: 0.94 to 1.04 (11)
    {928, INT64_MAX, 7, 16},  // 6: 0.99 to 1.18 (8), 7: 0.92 to 1.03 (10); 16: 0.79 to 1.09 (6)
    {1024, INT64_MAX, 5, 6},  // 4: 0.95 to 1.08 (10), 5: 0.93 to 1.00 (6); not timed
    {1279, 31, 4, 3},         // H = 1040: 3: 1.04 to 1.14, 4: 0.91 to 1.03; 2: 1.17, 3: 0.92 to 1.04
    {1279, 127, 4, 4},        // of 32 and 64: 3: 1.18, 4: 1.02, 1.01; 3: 0.99, 1.05, 4: 0.87, 0.92
    {1407, 8, 3, 3},          // H = 1280: 2: 0.98 to 1.20, 3: 0.90 to 1.00; 2: 0.97 to 1.12, 3: 0.84
    {1407, 31, 4, 3},         // of 12 and 16: 3: 1.07, 1.08, 4: 0.98; 3: 0.87
    {1536, 4, 3, 3},          // H = 1536, of 1 and 4: 2: 1.16, 1.08, 3: 0.96, 0.92; 2: 1.06, 1.02
    {1536, 8, 2, 2},          // of 8: 2: 1.02; 0.93
    {1919, 8, 3, 2},          // H = 1792: 2: 1.03 to 1.12, 3: 0.74 to 0.89; 2: 0.84 to 0.97
    {INT64_MAX, 8, 2, 2},     // H = 2048: 2: 0.91 to 0.99; 0.78 to 0.86
    {INT64_MAX, 31, 3, 2},    // of 12 and 16: 2: 1.21, 1.15, 3: 1.00, 0.92; 2: 1.00, 0.94
    {INT64_MAX, 63, 3, 3},    // of 32, H = 1536 and 2048: 2: 1.21, 1.16, 3: 0.99, 0.91; 2: 1.08, 1.03
    {INT64_MAX, 127, 4, 3},   // of 64: 3: 1.05, 0.98, 4: 0.93, 0.89; 2: 1.16, 1.08, 3: 0.99, 0.94
    {INT64_MAX, 255, 8, 6},   // of 128: 6: 1.06, 9: 0.99; 4: 1.05, 6: 0.99
    {INT64_MAX, 511, 9, 16},  // of 256: 6: 1.07, 9: 1.00; 9: 1.09, 14: 1.03
    {INT64_MAX, INT64_MAX, 8, INT64_MAX},  // of 512: 6: 1.03, 9: 0.95; 14: 1.04, 256: 1.03
};

constexpr bool every_row_is_met(std::span<const FewestSteps> rows) {
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t before = 0; before < i; ++before)
      if (rows[before].hidden >= rows[i].hidden && rows[before].batch >= rows[i].batch) return false;
  return true;
}
static_assert(every_row_is_met(kFewestSteps));

/// The same where the teams of gru_cluster_many run in waves, to so many hidden units and tiles of all waves by rounds
/// of `products`. Beside each the time of `persistent` by that of `products`, of both widths, on an H100 (--kernel
/// persistent,products).
struct FewestStepsInWaves {
  int64_t hidden, tiles, steps;
};
constexpr FewestStepsInWaves kFewestStepsInWaves[] = {
    {512, 10, 12},  // H = 384 and 512: 8: 0.96 to 1.11, 16: 0.83 to 0.98, 64: 0.69 to 0.83
    // H of 528 to 768, 6 to 8 tiles: 8: 0.89 to 1.36, 16: 0.78 to 1.26, 64: 0.67 to 1.07; beyond 1.03 with 16 steps are
    // 641 sequences of H = 528, and of two bytes 384 and 448 of H = 640.
    {INT64_MAX, 8, 16},
    {INT64_MAX, 10, 48},  // H of 576 to 768, 10 tiles: 16: 1.04 to 1.28, 32: 1.05 and 1.12, 64: 0.93 to 1.09
    // H of 640 to 768, 10.5 to 14 tiles: 64: 1.00 to 1.19.
};

/// Of layers that `products` does not run, at most: what rows by `step` have for as many sequences.
constexpr int64_t kFewestBesideStep = 6;

/// From so many sequences on, of layers to so many hidden units, `products` is as fast as `step` or faster, on an H200
/// (cuda_gru_bench --calls-only --same-weights, with 1 and with INT64_MAX in every row here). copied: calls of one step
/// for which `step` takes a second launch, which copies what it reads; also with --one-state, and with --floats.
struct FewestSequences {
  struct Widths {
    int64_t bytes, wide;  // of h
  };
  int64_t hidden;
  Widths otherwise, copied;
};
/// In brackets the time of `products` by that of `step` for some numbers of sequences; copied: the larger of both.
/// Timed with C = H.
constexpr FewestSequences kFewestProductSequences[] = {
    // Otherwise: 128 (0.99), 192 (1.06), 256 (0.81); wide: 192 (1.24).
    // Copied: 32 (1.02), 48 (1.02), 64 (1.01); wide: 48 (1.09), 64 (1.00).
    {320, {193, 193}, {48, 64}},
    // Otherwise: 24 (0.96), 32 (0.99), 48 (0.93); wide: 128 (1.21), 192 (0.81).
    // Copied: 32 (1.04), 48 (0.93); wide: 24 (1.14), 48 (0.93).
    {384, {24, 161}, {33, 48}},
    // Otherwise: 24 (1.01), 64 (1.02), 96 (0.99), 128 (0.96); wide: 128 (1.22), 192 (0.88).
    // Copied: 24 (1.07), 32 (0.94); wide: 24 (1.13), 32 (1.02), 48 (0.99).
    {512, {65, 161}, {32, 32}},
    // Otherwise: 24 (1.07), 32 (0.83); wide: 64 (1.09), 96 (1.03).
    // Copied: 16 (1.06), 24 (0.97); wide: 16 (1.11), 24 (0.97).
    {640, {25, 97}, {17, 24}},
    // Otherwise: 16 (1.20), 24 (0.87); wide: 64 (1.09), 96 (0.71).
    // Copied: 16 (1.09), 24 (0.87); wide: 9 (1.14), 16 (1.01), 24 (0.89).
    {768, {17, 65}, {17, 16}},
    // Otherwise: 16 (1.13), 24 (0.80); wide: 16 (1.18), 24 (1.04), 64 (1.02), 96 (0.74).
    // Copied: 16 (1.10), 24 (0.82); wide: 4 (1.22), 8 (0.93).
    {1056, {17, 24}, {17, 8}},  // H = 1040 as 1024; beyond, gru_step has over 132 blocks
    // From here on an H100 throughout. H = 1280. Otherwise: 6 (1.10), 8 (0.95); wide: 6 (1.06), 8 (0.94).
    // Copied: 6 (1.04), 8 (0.92); wide: 6 (1.05), 8 (0.96).
    {1407, {8, 8}, {8, 8}},
    // Otherwise: 8 (1.03), 10 (0.80); wide: 6 (1.07), 8 (0.96).
    // Copied: 8 (1.03), 10 (0.83); wide: 6 (1.05), 8 (0.94).
    {1536, {9, 8}, {9, 8}},
    // H = 1792 and 2048. Otherwise: 8 (1.11, 1.07), 10 (0.94, 0.93); wide: 6 (0.98, 1.04), 8 (0.91, 0.94).
    // Copied: 8 (1.08, 1.09), 10 (0.91, 0.93); wide: 1 (1.19, 1.27), 4 (1.03, 0.98), 6 (0.96, 0.93).
    {INT64_MAX, {9, 8}, {9, 4}},
};
/// The same, in the order otherwise, wide, copied, wide copied, with C to 64, of which a stage of `products` is half
/// empty (isobit bench gru --device cuda --kernel step,products --input 64 --mode two-states,streaming; bytes of H from
/// 384 to 1056 on an H100).
constexpr int64_t kVeryFewInputs = 64;
constexpr FewestSequences kFewestSequencesOfVeryFewInputs[] = {
    {320, {193, 193}, {129, 64}},  // 128 (1.18); 128 (1.33); 64 (1.10), 128 (1.04); 48 (1.10), 64 (1.05)
    {384, {161, 161}, {97, 48}},   // 128 (1.14); 128 (1.27); 64 (1.06), 80 (1.07), 96 (1.02), 128 (1.00); 48 (1.00)
    {512, {257, 161}, {65, 129}},  // 176 (1.05), 256 (1.02); 128 (1.34); 64 (1.11), 96 (1.03); 64 (1.08), 128 (1.04)
    {640, {97, 97}, {17, 25}},     // 96 (1.12), 128 (0.83); 128 (0.83); 24 (1.01); 24 (1.10), 32 (0.96)
    {768, {65, 65}, {65, 17}},     // 64 (1.16), 72 (0.95); 96 (0.80); 24 (1.05), 72 (0.83); 16 (1.16), 24 (1.03)
    {1056, {65, 65}, {12, 17}},    // 896 and 1024: 24 (1.09), 64 (1.09, 1.04), 72 (0.94, 1.03), 128 (0.87, 0.91);
                                   // 64 (1.24), 96 (0.87); 8 (1.14), 12 (0.98, 0.99); 8 (1.27), 24 (1.01)
    {INT64_MAX, {9, 9}, {9, 9}},   // 1536, 8 (1.22), 12 (1.00); 8 (1.23), 12 (0.90); 8 (1.11); 8 (1.06)
};
/// The same with C from 65 to 3 H / 4, on an H100 (--input 256, or as said; of the row 384 also 128).
constexpr FewestSequences kFewestSequencesOfFewInputs[] = {
    {320, {193, 193}, {129, 64}},  // as with C to 64
    {384, {161, 161}, {24, 48}},   // 128 (1.12), 160 (1.19); as 64; 24 (1.00, 1.02), 64 (1.03); as 64
    {512, {129, 161}, {65, 129}},  // 96 (1.05), 128 (1.03), 160 (0.97); as 64; 64 (1.03), 96 (0.98); as 64
    {640, {97, 97}, {12, 25}},     // 64 (0.97), 80 (1.09), 96 (1.06); 96 (1.12); 12 (0.95, C = 128); 24 (1.03)
    {768, {65, 65}, {12, 17}},     // 48 (1.05); 64 (1.17), 96 (0.81); C = 128: 12 (1.00), 576: 12 (0.93); 17 (0.98)
    {1056, {12, 65}, {12, 17}},    // C = 128 to 768: 12 (0.92 to 1.00), 17 (0.94 to 1.06), 24 (0.90 to 1.00); C = 256:
                                   // 64 (1.05, 1.07), 96 (0.76, 0.88); 12 (0.87, 0.93); 17 (0.91, 0.95)
    {INT64_MAX, {9, 9}, {9, 9}},   // as with C to 64
};
/// The same with C above 5 H / 4, of h of two bytes above 5 H / 2 (--input 1024, 2048).
constexpr FewestSequences kFewestSequencesOfManyInputs[] = {
    {320, {49, 33}, {49, 33}},    // 48 (1.25), 64 (0.83); as 384; 48 (1.17), 64 (0.81); as 384
    {384, {41, 33}, {41, 33}},    // 40 (1.22), 41 (0.90); 32 (1.03), 48 (0.85); 40 (1.10), 41 (0.84); 32 (0.96)
    {512, {33, 33}, {32, 24}},    // C = 1024: 32 (1.12), 48 (0.88); 2048: 32 (1.06), 48 (0.79); 48 (0.92); 32 (0.99);
                                  // 24 (0.93)
    {640, {25, 17}, {17, 17}},    // 24 (0.99), 32 (0.72); 24 (0.97); 24 (0.95); 16 (0.96), 24 (0.85)
    {1056, {17, 17}, {17, 8}},    // 768: 16 (1.06), 24 (0.75); 16 (0.96), 24 (0.83); 16 (1.04), 24 (0.73); 8 (1.05)
    {INT64_MAX, {9, 8}, {9, 8}},  // not timed, as 1536 with fewer inputs
};

/// Of gru_portable, by the same measure; more launches than `launches` take longer than `step` for any number of steps.
/// No device of compute capability 8 was at hand.
struct FewestPortableSteps {
  int64_t hidden, batch, steps, launches = 2;
};
constexpr FewestPortableSteps kFewestPortableSteps[] = {
    {128, INT64_MAX, 9, INT64_MAX},  // 8: 0.87 to 1.03, 12: 0.77 to 0.90
    {256, 7, INT64_MAX},             // 256: 1.03
    {512, 7, 48},                    // 20: 1.22, 256: 0.92
    {256, 15, 48},                   // 20: 1.15, 256: 0.83
    {256, 63, 24},                   // 20: 1.02, 256: 0.79
    {512, 15, 20},                   // 20: 0.97
    {512, 63, 12},                   // 8: 1.07, 12: 0.92
    {512, INT64_MAX, 8},             // 6: 0.94 to 1.07, 8: 0.88 to 0.95
    {1024, 7, 32},                   // 20: 1.07, 256: 0.76
    {1024, 15, 16},                  // 12: 1.05, 20: 0.87
    {1024, INT64_MAX, 8},            // 8: 0.96, of four launches 256: 1.22
    {INT64_MAX, 8, 5},               // H = 1040, of 1 to 8: 4: 1.05 to 1.21, 6: 0.95 to 1.04; 2048: 3: 0.63 to 0.74
    {INT64_MAX, 16, 4},              // H = 1040, of 12 and 16: 3: 1.14, 1.07, 4: 1.03, 0.92
    {INT64_MAX, INT64_MAX, 7, 3},    // 6: 1.05, 8: 0.77
};

/// A run of several steps, too few for `persistent`: `step` is the faster while all blocks of its smallest tile are on
/// the device at once. Two steps on an H100 (--mode sequence --steps 2 --kernel products,step, also with --input 64 to
/// 1024), H of 320 to 1040: with all blocks there `products` was over 5 % faster in 3 of 354 cases, else `step` in 12
/// of 171. With C = 2048 `products` was in 28 of 46. From H = 1072 on 9 to 32 sequences of `products` took 0.74 to 1.06
/// of the time of `step`, with few inputs 0.93 to 1.46, more of these 0.59 to 0.96.
constexpr int64_t kMostStepInputs = 1536, kMostStepHidden = 1056, kMostStepSequences = 8;
int64_t step_blocks(int64_t hidden, int64_t batch) {
  const auto pieces = [](int64_t count, int64_t piece) { return (count + piece - 1) / piece; };
  return pieces(hidden, kStepTileUnits) * pieces(batch, kStepTileSequences);
}

bool has_few_inputs(const LayerSize& layer) { return 4 * layer.inputs <= 3 * layer.hidden; }

std::span<const FewestSequences> product_rules(const LayerSize& layer) {
  if (4 * layer.inputs > 5 * (layer.wide ? 2 : 1) * layer.hidden) return kFewestSequencesOfManyInputs;
  if (!has_few_inputs(layer)) return kFewestProductSequences;
  if (layer.inputs > kVeryFewInputs) return kFewestSequencesOfFewInputs;
  return kFewestSequencesOfVeryFewInputs;
}

/// Fewest steps of a run with guests, whose teams have so many tiles of their own. In brackets the time by that without
/// guests, on an H100 (cuda_gru_bench --sequences-only --steps T, H of 272 to 768, 1 to 16 guests, beside a copy
/// without).
int64_t fewest_steps_with_guests(int64_t hidden, bool wide, int64_t tiles) {
  const bool two = tiles == 2;
  // 32 (0.90 to 1.00), 256 (0.85 to 0.91); of more tiles 32 (0.96 to 1.03), 64 and 96 (0.91 to 0.98), 256 (0.88 to
  // 0.97).
  if (!wide) return two ? 32 : 64;
  // 32 (0.87 to 1.02), 256 (0.78 to 0.94).
  if (hidden <= 512) return 32;
  // 32 (1.00 to 1.01), 96 (0.93 to 1.01), 256 (0.90 to 0.96); of more tiles 96 (0.98 to 1.03), 256 (0.97 to 1.01).
  return two ? 96 : INT64_MAX;
}

/// Of several the last one's inputs: all but the first have H, or 2 H.
LayerSize size_of(std::span<const DeviceLayer> layers) {
  return {layers.back().input_size, layers.front().hidden_size, layers.front().persistent.h_planes == 2};
}

}  // namespace

int64_t persistent_fewest_steps(const LayerSize& layer, int64_t batch, bool has_products) {
  for (const FewestSteps& row : kFewestSteps)
    if (layer.hidden <= row.hidden && batch <= row.batch) {
      const int64_t steps = layer.wide ? row.wide : row.steps;
      return has_products ? steps : std::min(steps, kFewestBesideStep);
    }
  return INT64_MAX;  // not reached: the last row takes all
}

int64_t persistent_fewest_steps_in_waves(int64_t hidden, int64_t tiles, int64_t rounds) {
  for (const FewestStepsInWaves& row : kFewestStepsInWaves)
    if (hidden <= row.hidden && tiles <= row.tiles * rounds) return row.steps;
  return INT64_MAX;
}

bool products_are_faster(const LayerSize& layer, int64_t batch, int64_t steps, bool copies, int64_t room) {
  if (steps == 0) return false;
  if (steps > 1 && (layer.inputs <= kMostStepInputs || layer.hidden > kMostStepHidden))
    return batch > kMostStepSequences &&
           ((layer.hidden > kMostStepHidden && !has_few_inputs(layer)) || step_blocks(layer.hidden, batch) > room);
  for (const FewestSequences& row : product_rules(layer))
    if (layer.hidden <= row.hidden) {
      const FewestSequences::Widths& fewest = copies ? row.copied : row.otherwise;
      return batch >= (layer.wide ? fewest.wide : fewest.bytes);
    }
  return false;  // not reached, as above
}

Guests guests_of(int64_t hidden, bool wide, const TeamRoom& room, int64_t batch, int64_t steps, int64_t fewest_steps) {
  // The sequences beyond whole tiles for every team, which otherwise would all have a tile more: to 16 of them, of
  // teams with two tiles or more of their own. A second tile adds too little to a step of one.
  constexpr int64_t kMostGuestTiles = 2, kFewestOwnTiles = 2;
  const int64_t one_tile_each = int64_t{room.teams} * room.tile_sequences;
  const int64_t tiles = batch / one_tile_each, sequences = batch % one_tile_each;
  const int64_t guest_tiles = (sequences + room.tile_sequences - 1) / room.tile_sequences;
  if (sequences == 0 || guest_tiles > kMostGuestTiles || tiles < kFewestOwnTiles || tiles + guest_tiles > room.tiles)
    return {};
  if (steps < std::max<int64_t>(fewest_steps > 0 ? fewest_steps : fewest_steps_with_guests(hidden, wide, tiles), 2))
    return {};
  // More visits than this make a run of 256 steps longer again. So few leave no single step to the last one.
  const int64_t most = std::min(kMostVisits, room.teams);
  const int64_t visits = std::clamp<int64_t>(std::lround(std::sqrt(0.5 * static_cast<double>(steps))), 1, most);
  const int64_t each = (steps + visits - 1) / visits;
  return {static_cast<int32_t>(sequences), static_cast<int32_t>((steps + each - 1) / each), static_cast<int32_t>(each)};
}

PersistentForm fastest_form(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  if (fits(layer, PersistentForm::kPortable) && takes_portable(layer, batch, steps)) return PersistentForm::kPortable;
  if (fits(layer, PersistentForm::kGrid) && takes_grid(layer, batch, steps)) return PersistentForm::kGrid;
  const bool many = fits(layer, PersistentForm::kClusterMany);
  if (fits(layer, PersistentForm::kCluster) && !(many && takes_cluster_many(layer, batch, steps)))
    return PersistentForm::kCluster;
  return many ? PersistentForm::kClusterMany : PersistentForm::kPortable;
}

bool persistent_is_taken(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool) {
  const PersistentLayer& layer = layers.front().persistent;
  if (fits(layer, PersistentForm::kPortable) && fastest_form(layer, batch, 1) == PersistentForm::kPortable) {
    for (const FewestPortableSteps& row : kFewestPortableSteps)
      if (layer.hidden_size <= row.hidden && batch <= row.batch)
        return portable_launches(layer, batch) <= row.launches && steps >= row.steps;
  }
  const bool has_products = fits(layer, PersistentForm::kProducts);
  if (has_products && fastest_form(layer, batch, steps) == PersistentForm::kClusterMany) {
    const ClusterWaves waves = cluster_many_waves(layer, batch, steps);
    if (waves.count > 1)
      return steps >= persistent_fewest_steps_in_waves(layer.hidden_size, waves.count * waves.tiles,
                                                       products_rounds(layer, batch));
  }
  return steps >= persistent_fewest_steps(size_of(layers), batch, has_products);
}

bool products_is_taken(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies) {
  return products_are_faster(size_of(layers), batch, steps, copies, layers.front().persistent.products_room);
}

bool only_if_asked(std::span<const DeviceLayer>, int64_t, int64_t, bool) { return false; }

}  // namespace isobit::cuda
