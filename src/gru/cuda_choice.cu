// SPDX-License-Identifier: Apache-2.0
#include "gru/cuda_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gru/cuda_cluster.h"
#include "gru/cuda_grid.h"
#include "gru/cuda_gru.h"
#include "gru/cuda_persistent.h"
#include "gru/cuda_portable.h"

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
/// `persistent` by that of the faster of the others, for numbers of steps on both sides of the row's; after a semicolon
/// of h of two bytes (isobit bench gru --device cuda --mode sequence --kernel cluster,cluster_many,grid,products,step
/// --steps T, of the form that fastest_form takes). Two figures are those of the smaller and the larger H timed, or of
/// 1 and 4 sequences where a row says so. Timed on H100s are H to 256 to 256 sequences, to 1024, above to 127; others
/// on an H200.
struct FewestSteps {
  int64_t hidden, batch, steps, wide;
};
constexpr FewestSteps kFewestSteps[] = {
    {256, 64, 3, 3},   // 2: 0.99 to 1.17, 3: 0.79 to 1.01; 2: 0.98 to 1.31, 3: 0.76 to 1.04
    {128, 192, 3, 3},  // of 96 to 192: 3: 0.72 to 1.01; 0.81 to 1.02
    {256, 895, 4, 4},  // of 256: 3: 1.06 to 1.13, 4: 0.88 to 0.97; 3: 1.02 to 1.07
                       // H = 256, of 96 to 192: 3: 1.04 to 1.12; 0.97 to 1.06
    {512, 23, 4, 4},   // of 12 to 20: 3: 0.99 to 1.16, 4: 0.85 to 1.05; 3: 0.89 to 1.13, 4: 0.78 to 0.98
                       // of 1 to 8: 3: 1.08 to 1.21, 4: 0.92 to 1.03; 3: 1.04 to 1.27
    {400, 64, 3, 3},   // H = 320 and 384, of 24 to 64: 2: 1.15 to 1.26, 3: 0.94 to 1.02;
                       // 2: 1.03 to 1.29, 3: 0.86 to 1.03
    {512, 63, 3, 3},   // H = 448 and 512, of 24 to 48: 2: 1.12 to 1.29, 3: 0.92 to 1.10;
                       // 2: 1.06 to 1.26, 3: 0.90 to 1.04
    {512, 64, 3, 2},   // H = 448 and 512, of 64: 2: 1.21 to 1.25, 3: 1.02 to 1.03; 2: 0.91 to 0.92
    {352, 104, 3, 3},  // of 80 and 96: 2: 1.29, 3: 0.98 to 1.01; 2: 1.14, 3: 0.89 to 0.93
    {352, 184, 4, 3},  // of 112 to 176: 3: 1.04 to 1.16, 4: 0.88 to 0.98; 2: 1.10, 3: 0.82 to 1.00
    {352, 192, 4, 4},  // of 192: 3: 1.16, 4: 0.99; 3: 1.09, 4: 0.95
    {400, 256, 3, 3},  // H = 320 and 384, of 80 to 256: 2: 1.16 to 1.51, 3: 0.93 to 1.06;
                       // 2: 1.11 to 1.27, 3: 0.88 to 0.99; H = 320, of 200: 3: 0.91
    {512, 88, 3, 3},   // H = 448 and 512, of 80: 3: 0.97 to 1.00; 3: 0.76 to 0.89
    {512, 136, 4, 3},  // H = 448 and 512, of 96 to 128: 3: 0.99 to 1.09, 4: 0.81 to 0.96;
                       // 2: 1.11 to 1.38, 3: 0.90 to 1.02
    {512, 256, 3, 3},  // H = 448 and 512, of 144 to 256: 2: 1.11 to 1.25, 3: 0.87 to 0.97;
                       // 2: 1.01 to 1.19, 3: 0.79 to 1.00
    {512, 895, 4, 4},  // H = 512, of 320 to 768: 4: 0.83 to 0.98; 4: 0.82 to 0.93
    {512, INT64_MAX, INT64_MAX, INT64_MAX},  // H = 512, of 1024: 16: 1.14; 16: 1.23
    // H = 640, of 1 and 4: 4: 1.12, 1.07, 5: 1.02, 0.93; 3: 1.14, 1.10, 4: 0.98, 0.90
    {704, 8, 5, 4},             // of 8: 4: 1.02 to 1.07, 6: 0.76 to 0.85; 3: 0.95 to 1.16, 4: 0.85 to 1.03
    {704, 19, 4, 3},            // of 12 and 16: 3: 1.00 to 1.18, 4: 0.81 to 1.01; 2: 1.07 to 1.35, 3: 0.84 to 1.09
    {576, 56, 3, 3},            // of 20 to 56: 3: 0.85 to 0.99; 2: 0.92 to 1.34, 3: 0.74 to 0.91
    {640, 27, 3, 3},            // of 20 and 24: 2: 1.17, 3: 0.95 to 1.01; 2: 1.04, 3: 0.85 to 0.86
    {640, 56, 3, 2},            // of 28 to 56: 2: 1.06, 3: 0.77 to 0.97; 2: 0.89 to 0.94
    {704, 56, 3, 3},            // H = 704, of 20 to 56: 3: 0.85 to 0.98; 3: 0.71 to 0.89
    {704, 112, 4, 3},           // of 64 to 112: 3: 1.00 to 1.10, 4: 0.88 to 0.96; 2: 1.05 to 1.20, 3: 0.92 to 0.99
    {704, 128, 4, 4},           // H = 640, of 128: 3: 1.14, 4: 1.00; 3: 1.11, 4: 0.96
    {704, 160, 4, 3},           // of 144 and 160: 3: 0.96 to 1.03, 4: 0.86 to 0.94; 2: 1.17, 3: 0.87 to 0.97
    {704, 224, 4, 4},           // of 176 to 224: 3: 1.08 to 1.19, 4: 0.95 to 1.04; 3: 1.02 to 1.14, 4: 0.89 to 1.02
    {704, 240, 5, 5},           // H = 576 and 704, of 240: 4: 1.07 to 1.09, 6: 0.94 to 0.97;
                                // 4: 1.04 to 1.08, 6: 0.91 to 0.99
    {704, 256, 6, 7},           // H = 640, of 256: 4: 1.16, 6: 0.99; 6: 1.04, 8: 0.99
    {704, 280, 5, 6},           // H = 640, of 280: 5: 0.99; not timed; more than 280 of two planes take two launches
    {704, 336, 8, INT64_MAX},   // H = 640, of 320: 4: 1.20, 8: 0.97; 16: 1.48
    {704, 392, 24, INT64_MAX},  // H = 640, of 384: 16: 1.02; 16: 1.51
    {704, INT64_MAX, INT64_MAX, INT64_MAX},  // H = 640, of 448 to 1024: 16: 1.26 to 1.58; 16: 1.17 to 1.57
    {768, 8, 5, 4},                          // of 8: 4: 1.01, 6: 0.81; 3: 1.01, 4: 0.87
                                             // of 1 and 4: 4: 1.09, 1.05, 5: 0.82, 0.94; 3: 1.07, 1.03, 4: 0.92, 0.88
    {768, 19, 4, 3},                         // of 12 and 16: 3: 1.05 to 1.07, 4: 0.88 to 0.90; 2: 1.22, 3: 0.94 to 0.96
    {768, 56, 3, 3},            // of 20 to 56: 2: 1.25 to 1.42, 3: 0.88 to 1.02; 2: 1.08 to 1.12, 3: 0.85 to 0.90
    {768, 64, 4, 3},            // of 64: 3: 1.05, 4: 0.91; 2: 1.21, 3: 0.95
    {768, 112, 3, 3},           // of 80 to 112: 2: 1.15 to 1.16, 3: 0.83 to 0.96; 2: 1.10 to 1.12, 3: 0.73 to 0.97
    {768, 128, 4, 4},           // of 128: 3: 1.07, 4: 0.96; 3: 1.09, 4: 0.95
    {768, 160, 3, 3},           // of 144 and 160: 2: 1.20, 3: 0.97; 2: 1.16, 3: 0.93
    {768, 224, 4, 4},           // of 176 to 224: 3: 1.07 to 1.08, 4: 0.96 to 0.98; 3: 1.07 to 1.09, 4: 0.95 to 0.96
    {768, 256, 6, 6},           // of 256: 4: 1.10, 6: 0.98; 4: 1.11, 6: 1.00
    {768, 280, 5, 6},           // of 280: 5: 0.88; not timed
    {768, 336, 7, INT64_MAX},   // of 320: 4: 1.13, 8: 0.87; 16: 1.15
    {768, 392, 10, INT64_MAX},  // of 384: 8: 1.02, 16: 0.91; 16: 1.18
    {768, 560, INT64_MAX, 24},  // of 448 and 512: 16: 1.45 to 1.48; 16: 1.03 to 1.04
    {768, 640, INT64_MAX, INT64_MAX},        // not timed; of more `products` has two rounds
    {768, 784, 12, 12},                      // of 768: 8: 1.08, 16: 0.94; 8: 1.07, 16: 0.93
    {768, INT64_MAX, INT64_MAX, INT64_MAX},  // of 1024: 16: 1.18; 16: 1.10
    {1024, 1, 6, 5},    // H = 896 and 1024: 5: 1.10, 1.00, 6: 0.98, 0.93; 4: 1.04, 1.02, 5: 0.92, 0.88
    {1024, 8, 5, 4},    // of 8: 4: 1.09 to 1.16, 6: 0.90 to 0.95; 3: 1.11 to 1.14, 4: 0.91 to 0.98
    {1024, 19, 4, 3},   // of 12 and 16: 3: 1.14 to 1.53, 4: 0.86 to 1.03; 2: 1.24 to 1.25, 3: 0.85 to 1.07
    {1024, 56, 3, 3},   // of 20 to 56: 2: 1.20 to 1.24, 3: 0.97 to 1.05; 2: 1.09 to 1.16, 3: 0.84 to 0.95
    {1024, 64, 4, 3},   // H = 896 and 1024, of 64: 3: 1.09, 4: 0.89 to 0.92;
                        // 2: 1.16 to 1.19, 3: 0.97 to 1.00
    {928, 88, 3, 3},    // H = 832 and 896, of 80: 3: 0.93 and 0.94; 3: 0.96 and 0.99
    {928, 112, 3, 4},   // H = 896, of 96 and 112: 2: 1.22 and 1.23, 3: 0.98 and 0.97; 3: 1.03 to 1.08, 4: 0.91 and 0.92
    {1024, 112, 3, 3},  // H = 960 and 1024, of 80 to 112: 2: 1.18 and 1.20, 3: 0.90 to 0.95;
                        // 2: 1.04 to 1.10, 3: 0.86 to 0.93
    {928, 128, 4, 4},   // H = 896, of 120 and 128: 3: 1.08, 4: 0.97; 3: 1.05 to 1.09, 4: 0.92
    {1024, 128, 4, 3},  // H = 1024, of 128: 3: 1.00, 4: 0.90; 2: 1.13, 3: 0.98
    {1024, 160, 3, 3},  // of 144 and 160: 2: 1.21 to 1.22, 3: 0.76 to 0.99; 2: 1.06 to 1.16, 3: 0.84 to 0.99
    {992, 192, 4, 4},   // H = 832 to 960, of 176 and 192: 3: 1.06 to 1.13, 4: 0.93 to 1.01;
                        // 3: 1.04 to 1.07, 4: 0.89 to 0.98
    {1024, 192, 4, 3},  // H = 1024, of 176 and 192: 3: 1.08 to 1.10, 4: 0.95 to 0.96;
                        // 2: 1.09, 3: 0.94 to 0.95
    {928, 256, 5, 5},   // H = 832 and 896, of 208 to 256: 4: 1.06 to 1.10, 6: 0.88 to 0.99;
                        // 4: 1.04 to 1.13, 6: 0.94 to 1.01
    {992, 256, 5, 4},   // of 208 and 240: 4: 0.99 to 1.02, 6: 0.87 to 0.90; 3: 1.01 to 1.04, 4: 0.93 to 0.98
    {1024, 256, 5, 3},  // H = 1024, of 208 to 256: 4: 1.02 to 1.03, 6: 0.90 to 0.92;
                        // 2: 1.09, 3: 0.94 to 0.96
    {928, 383, 7, 6},   // H = 832 and 896, of 320: 4: 1.08, 8: 0.89; 4: 1.02, 8: 0.95
    {928, 640, 7, INT64_MAX},  // H = 832 and 896, of 384 to 512: 4: 1.04 to 1.14, 8: 0.92 to 0.98; 128: 1.01 to 1.05
    {928, 800, 7, 8},          // of 768: 4: 1.11, 8: 0.97; 4: 1.09, 8: 0.98
    {928, INT64_MAX, 7, INT64_MAX},  // H = 832 and 896, of 1024: 4: 1.12, 8: 0.98; 128: 1.02 to 1.04
    {992, 448, 5, 5},                // of 320: bytes not timed; 32: 0.75
    {1024, 448, 5, 4},               // H = 1024, of 320 to 448: 4: 0.95 to 1.02, 8: 0.79 to 0.86; 4: 0.87 to 0.93
    {1024, INT64_MAX, 5, 8},  // of 512 to 1024: 4: 1.00 to 1.05, 8: 0.85 to 0.92; 4: 0.96 to 1.08, 8: 0.89 to 1.00
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
  Widths several = otherwise;  // of runs of two steps and more that are too few for `persistent`
};
/// In brackets the time of `products` by that of `step` for some numbers of sequences; copied: the larger of both;
/// several: of two steps, on an H100 (isobit bench gru --device cuda --mode sequence --steps 2 --kernel products,step).
/// Timed with C = H.
constexpr FewestSequences kFewestProductSequences[] = {
    // Otherwise: 128 (0.99), 192 (1.06), 256 (0.81); wide: 192 (1.24).
    // Copied: 32 (1.02), 48 (1.02), 64 (1.01); wide: 48 (1.09), 64 (1.00).
    {320, {193, 193}, {48, 64}},
    // Otherwise: 24 (0.96), 32 (0.99), 48 (0.93); wide: 128 (1.21), 192 (0.81).
    // Copied: 32 (1.04), 48 (0.93); wide: 24 (1.14), 48 (0.93).
    // Several: 24 (1.14), 64 (1.11), 128 (1.08), 256 (0.95); wide: 128 (1.11).
    {384, {24, 161}, {33, 48}, {161, 161}},
    // Otherwise: 24 (1.01), 64 (1.02), 96 (0.99), 128 (0.96); wide: 128 (1.22), 192 (0.88).
    // Copied: 24 (1.07), 32 (0.94); wide: 24 (1.13), 32 (1.02), 48 (0.99).
    // Several: 64 (1.13), 96 (1.11), 128 (1.08); wide: 128 (1.15).
    {512, {65, 161}, {32, 32}, {161, 161}},
    // Otherwise: 24 (1.07), 32 (0.83); wide: 64 (1.09), 96 (1.03).
    // Copied: 16 (1.06), 24 (0.97); wide: 16 (1.11), 24 (0.97).
    // Several: 24 (1.13), 32 (1.00), 64 (1.02), 96 (1.06), 128 (0.88); wide: 96 (1.05), 128 (0.76).
    {640, {25, 97}, {17, 24}, {97, 97}},
    // Otherwise: 16 (1.20), 24 (0.87); wide: 64 (1.09), 96 (0.71).
    // Copied: 16 (1.09), 24 (0.87); wide: 9 (1.14), 16 (1.01), 24 (0.89).
    // Several: 17 (1.07), 24 (1.04), 64 (1.04), 96 (0.91); wide: 64 (1.05), 96 (0.79).
    {768, {17, 65}, {17, 16}, {65, 65}},
    // Otherwise: 16 (1.13), 24 (0.80); wide: 16 (1.18), 24 (1.04), 64 (1.02), 96 (0.74).
    // Copied: 16 (1.10), 24 (0.82); wide: 4 (1.22), 8 (0.93).
    // Several, H = 896 and 1024: 17 (0.99, 1.02), 64 (0.96, 0.97); wide: 17 (1.00, 1.01), 24 (0.98, 1.00).
    {1024, {17, 24}, {17, 8}},
    // H = 1040, otherwise and copied as 1024. Several: 24 (0.99), 48 (1.04), 64 (1.03 to 1.09), 96 (1.00), 128 (0.96);
    // wide: 24 (0.97), 64 (0.98).
    // Beyond, gru_step has over 132 blocks.
    {1056, {17, 24}, {17, 8}, {96, 24}},
    // From here on an H100 throughout. H = 1280. Otherwise: 6 (1.10), 8 (0.95); wide: 6 (1.06), 8 (0.94).
    // Copied: 6 (1.04), 8 (0.92); wide: 6 (1.05), 8 (0.96). Several: 8 (1.05), 12 (0.87); wide: 8 (1.22), 12 (0.93).
    {1407, {8, 8}, {8, 8}, {9, 9}},
    // Otherwise: 8 (1.03), 10 (0.80); wide: 6 (1.07), 8 (0.96).
    // Copied: 8 (1.03), 10 (0.83); wide: 6 (1.05), 8 (0.94).
    {1536, {9, 8}, {9, 8}},
    // H = 1792 and 2048. Otherwise: 8 (1.11, 1.07), 10 (0.94, 0.93); wide: 6 (0.98, 1.04), 8 (0.91, 0.94).
    // Copied: 8 (1.08, 1.09), 10 (0.91, 0.93); wide: 1 (1.19, 1.27), 4 (1.03, 0.98), 6 (0.96, 0.93).
    {INT64_MAX, {9, 8}, {9, 4}},
};
/// The same, in the order otherwise, wide, copied, wide copied, with C to 64, of which a stage of `products` is half
/// empty (isobit bench gru --device cuda --kernel step,products --input 64 --mode two-states,streaming; bytes of H from
/// 384 to 1056 on an H100). Several: not timed with these inputs, nor with those of the next tables.
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

std::span<const FewestSequences> product_rules(const LayerSize& layer) {
  if (4 * layer.inputs > 5 * (layer.wide ? 2 : 1) * layer.hidden) return kFewestSequencesOfManyInputs;
  if (4 * layer.inputs > 3 * layer.hidden) return kFewestProductSequences;
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

bool products_are_faster(const LayerSize& layer, int64_t batch, int64_t steps, bool copies) {
  if (steps == 0) return false;
  for (const FewestSequences& row : product_rules(layer))
    if (layer.hidden <= row.hidden) {
      const FewestSequences::Widths& fewest = steps > 1 ? row.several : copies ? row.copied : row.otherwise;
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
  return steps >= persistent_fewest_steps(size_of(layers), batch, fits(layer, PersistentForm::kProducts));
}

bool products_is_taken(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies) {
  return products_are_faster(size_of(layers), batch, steps, copies);
}

bool only_if_asked(std::span<const DeviceLayer>, int64_t, int64_t, bool) { return false; }

}  // namespace isobit::cuda
