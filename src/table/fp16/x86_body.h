// SPDX-License-Identifier: Apache-2.0
// What the x86 kernels of FP16 tables share. Included once by the file of an instruction set, after its struct Vector;
// of internal linkage, so that no copy for a wide instruction set reaches baseline code.
#ifndef ISOBIT_TABLE_FP16_X86_BODY_H_
#define ISOBIT_TABLE_FP16_X86_BODY_H_

namespace isobit {
namespace {

using Floats = Vector::Floats;
using Ints = Vector::Ints;
using Codes = Vector::Codes;
constexpr int kLanes = Vector::kLanes;
/// Vectors that are taken through each step together: one is a chain of some 150 cycles, further than a processor looks
/// ahead, and spilling costs less than waiting (exp with AVX2: 2.0 ns with 2, 1.6 with 4, 1.35 with 8; 16 gain
/// nothing).
constexpr int kChains = 8;
constexpr int kBlock = kChains * kLanes;
/// The same for a softmax, whose rows are often short.
constexpr int kRowChains = 4;
constexpr int kRowBlock = kRowChains * kLanes;
constexpr int kCodes = 2 * kLanes;  // in a vector
constexpr int64_t kTile = 1024;

/// The piecewise linear function of docs/numerics.md, section 13. kSmall: at most 14 intervals a piece.
template <Fp16Model kModel, bool kTwoPieces, bool kSmall, typename V = Vector>  // V: what AVX2 lacks may be named
struct LookUp {
  static constexpr int kPieces = kTwoPieces ? 2 : 1;
  static constexpr bool kByBits = Vector::kTableOf16 && kSmall;

  explicit LookUp(const Fp16Lanes& l) : lanes(l) {
    if constexpr (kSmall) {
      level0 = level0.load(l.thresholds + l.level_starts[0]);
      level1 = level1.load(l.thresholds + l.level_starts[1]);
      level2 = level2.load(l.thresholds + l.level_starts[2]);
      level3 = level3.load(l.thresholds + l.level_starts[3]);
      starts = starts.load(l.starts);
      scales = scales.load(l.scales);
      bases = bases.load(reinterpret_cast<const float*>(l.bases));
    }
    if constexpr (kByBits) {
      level1.template spread<1, kTwoPieces>();
      level2.template spread<2, kTwoPieces>();
      level3.template spread<3, kTwoPieces>();
    }
    if constexpr (kByBits && kTwoPieces) {
      starts.last_level_first();
      scales.last_level_first();
      bases.last_level_first();
    }
  }

  /// x, finite and at most 2^17, becomes the value there.
  template <int kCount>
  [[gnu::always_inline]] void operator()(Floats (&x)[kCount], const Ints (&piece)[kCount]) const {
    Floats start[kCount], scale[kCount];
    Ints base[kCount], index[kCount];
    for (int i = 0; i < kCount; ++i) index[i] = piece[i];
    if constexpr (kByBits) {  // bits are set where they belong, beside that of the piece: no shift
      constexpr int32_t kLastBit = kTwoPieces ? 16 : 1;
      for (int i = 0; i < kCount; ++i) index[i] = V::set_bits_where_reached(index[i], 8, level0.at(index[i]), x[i]);
      for (int i = 0; i < kCount; ++i) index[i] = V::set_bits_where_reached(index[i], 4, level1.at(index[i]), x[i]);
      for (int i = 0; i < kCount; ++i) index[i] = V::set_bits_where_reached(index[i], 2, level2.at(index[i]), x[i]);
      for (int i = 0; i < kCount; ++i)
        index[i] = V::set_bits_where_reached(index[i], kLastBit, level3.at(index[i]), x[i]);
    } else if constexpr (kSmall) {
      for (int i = 0; i < kCount; ++i) index[i] = Vector::descend(index[i], level0.at(index[i]), x[i]);
      for (int i = 0; i < kCount; ++i) index[i] = Vector::descend(index[i], level1.at(index[i]), x[i]);
      for (int i = 0; i < kCount; ++i) index[i] = Vector::descend(index[i], level2.at(index[i]), x[i]);
      for (int i = 0; i < kCount; ++i) index[i] = Vector::descend(index[i], level3.at(index[i]), x[i]);
    } else {
      for (int32_t level = 0; level < lanes.levels; ++level) {
        const float* thresholds = lanes.thresholds + lanes.level_starts[level];
        for (int i = 0; i < kCount; ++i)
          index[i] = Vector::descend(index[i], Vector::gather(thresholds, index[i]), x[i]);
      }
    }
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kSmall) {
        start[i] = starts.at(index[i]);
        scale[i] = scales.at(index[i]);
        base[i] = Vector::bits(bases.at(index[i]));
      } else {
        start[i] = Vector::gather(lanes.starts, index[i]);
        scale[i] = Vector::gather(lanes.scales, index[i]);
        base[i] = Vector::bits(Vector::gather(reinterpret_cast<const float*>(lanes.bases), index[i]));
      }
    }
    for (int i = 0; i < kCount; ++i) {
      x[i] = Vector::sub(x[i], start[i]);
      if constexpr (kModel == Fp16Model::kNliCpu) x[i] = Vector::through_f16(x[i]);
      x[i] = Vector::mul(x[i], scale[i]);
      if constexpr (kModel == Fp16Model::kNliCpu) x[i] = Vector::through_f16(x[i]);
    }
    for (int i = 0; i < kCount; ++i) {
      Floats fraction, left, difference;
      const Ints step = Vector::whole(x[i], &fraction);
      Vector::gather_pairs(lanes.entries, Vector::add(base[i], step), &left, &difference);
      if constexpr (kModel == Fp16Model::kNliCpu) {
        x[i] = Vector::add(Vector::mul(difference, fraction), left);
      } else {
        x[i] = Vector::fma(fraction, difference, left);
      }
    }
  }

  template <int kCount>
  [[gnu::always_inline]] void operator()(Floats (&x)[kCount]) const {
    const Ints first[kCount] = {};
    (*this)(x, first);
  }

  const Fp16Lanes& lanes;
  typename Vector::template Table<kPieces> level0;
  typename Vector::template Table<2 * kPieces> level1;
  typename Vector::template Table<4 * kPieces> level2;
  typename Vector::template Table<8 * kPieces> level3;
  typename Vector::template Table<16 * kPieces> starts, scales, bases;
};

[[gnu::always_inline]] inline Floats reduce_argument(Floats x, Floats k, float part1, float part2) {
  return Vector::fnma(k, Vector::all(part2), Vector::fnma(k, Vector::all(part1), x));
}

/// Added to a number below 2^22, leaves the nearest integer (ties to even) in the low bits.
constexpr float kRounder = 0x1.8p23f;

/// x becomes e^x in float32. -infinity gives a positive number below 2^-62, NaN a number. The third part of ln 2
/// changes the argument of no float16 number.
template <bool kFloat16, typename Table, int kCount>
[[gnu::always_inline]] inline void exp_of(const Table& look_up, Floats (&x)[kCount]) {
  Floats k[kCount];
  for (int i = 0; i < kCount; ++i) {
    x[i] = Vector::bound(x[i], 0x1p17f);
    k[i] = Vector::add(Vector::mul(x[i], Vector::all(kLog2E)), Vector::all(kRounder));
    k[i] = Vector::sub(k[i], Vector::all(kRounder));
    x[i] = reduce_argument(x[i], k[i], kLn2Part1, kLn2Part2);
    if constexpr (!kFloat16) x[i] = Vector::fnma(k[i], Vector::all(kLn2Part3), x[i]);
  }
  look_up(x);
  for (int i = 0; i < kCount; ++i) x[i] = Vector::times_power(x[i], Vector::bound(k[i], 64.0f));
}

/// Reductions that share their code.
enum class Group { kNone, kInverseSigmoid, kSinCos, kExp, kLog, kReciprocal, kRoot };

template <Fp16Model kModel, Group kGroup, bool kSmall>
struct Function {
  explicit Function(const Fp16Lanes& l)
      : look_up(l),
        overflows(l.overflows),
        quadrant(Vector::all_ints(l.reduction == Fp16Reduction::kCos ? 1 : 0)),
        root_flip(Vector::all_ints(l.reduction == Fp16Reduction::kRsqrt ? -1 : 0)),
        root_bias(Vector::all_ints(l.reduction == Fp16Reduction::kRsqrt ? INT32_MIN + 0x3f800000 : 0x3f800000)),
        special(l) {}

  /// x becomes the float32 result. That of special codes does not matter.
  [[gnu::always_inline]] void evaluate(Floats (&x)[kChains]) const {
    if constexpr (kGroup == Group::kNone || kGroup == Group::kInverseSigmoid) {
      // Infinities are beyond the table then, and NaN is a valid argument.
      for (int i = 0; i < kChains; ++i) x[i] = Vector::bound(x[i], 65504.0f);
      look_up(x);
    }
    if constexpr (kGroup == Group::kExp) exp_of<true>(look_up, x);
    if constexpr (kGroup == Group::kSinCos) {
      Ints piece[kChains], sign[kChains];
      for (int i = 0; i < kChains; ++i) {
        x[i] = Vector::bound(x[i], 65504.0f);
        const Floats k = Vector::add(Vector::mul(x[i], Vector::all(kTwoOverPi)), Vector::all(kRounder));
        const Ints q = Vector::add(Vector::bits(k), quadrant);
        const Floats whole = Vector::sub(k, Vector::all(kRounder));
        x[i] = reduce_argument(x[i], whole, kHalfPi1, kHalfPi2);
        x[i] = Vector::fnma(whole, Vector::all(kHalfPi3), x[i]);
        piece[i] = Vector::bit_and(q, Vector::all_ints(1));
        sign[i] = Vector::left<30>(q);
      }
      look_up(x, piece);
      for (int i = 0; i < kChains; ++i) x[i] = Vector::xor_sign(x[i], sign[i]);
    }
    if constexpr (kGroup == Group::kReciprocal) {
      Ints factor[kChains];
      for (int i = 0; i < kChains; ++i) {
        // 254 - exponent; the sign, above it, stays.
        const Ints power = Vector::bit_and(Vector::bits(x[i]), Vector::all_ints(~0x7fffff));
        factor[i] = Vector::sub(Vector::all_ints(254 << 23), power);
        const Ints fraction = Vector::bit_and(Vector::bits(x[i]), Vector::all_ints(0x7fffff));
        x[i] = Vector::floats(Vector::bit_or(fraction, Vector::all_ints(0x3f800000)));
      }
      look_up(x);
      for (int i = 0; i < kChains; ++i) x[i] = Vector::mul(x[i], Vector::floats(factor[i]));
    }
    if constexpr (kGroup == Group::kLog) {
      Floats k[kChains];
      for (int i = 0; i < kChains; ++i) {
        // x = 2^k m, m from half of kSqrt2Up on: the distance to that carries into the exponent where m reaches it.
        const Ints above = Vector::sub(Vector::bits(x[i]), Vector::bits(Vector::all(kSqrt2Up / 2)));
        k[i] = Vector::to_floats(Vector::right_signed<23>(above));
        const Ints power = Vector::bit_and(above, Vector::all_ints(~0x7fffff));
        x[i] = Vector::floats(Vector::sub(Vector::bits(x[i]), power));
      }
      look_up(x);
      for (int i = 0; i < kChains; ++i) x[i] = Vector::fma(k[i], Vector::all(kLn2Part1), x[i]);
    }
    if constexpr (kGroup == Group::kRoot) {
      Ints factor[kChains];
      for (int i = 0; i < kChains; ++i) {
        // With e the exponent's field: (e + 127) / 2 for the square root, (382 - e) / 2 for its reciprocal, rounded
        // down. Without the sign: a product that is not a normal number takes hundreds of cycles, though nobody wants
        // it.
        const Ints positive = Vector::bit_and(Vector::bits(x[i]), Vector::all_ints(INT32_MAX));
        const Ints twice = Vector::add(Vector::bit_xor(positive, root_flip), root_bias);
        factor[i] = Vector::bit_and(Vector::right<1>(twice), Vector::all_ints(0xff << 23));
        // m in [1, 4) has the field 128 - (e & 1).
        const Ints low = Vector::bit_and(Vector::bits(x[i]), Vector::all_ints(0xffffff));
        x[i] =
            Vector::floats(Vector::add(Vector::bit_xor(low, Vector::all_ints(0x800000)), Vector::all_ints(0x3f800000)));
      }
      look_up(x);
      for (int i = 0; i < kChains; ++i) x[i] = Vector::mul(x[i], Vector::floats(factor[i]));
    }
  }

  /// One block; out may be in.
  [[gnu::always_inline]] void operator()(const uint16_t* in, uint16_t* out) const {
    // Halves are widened from memory, which saves the instructions that would take them from a vector.
    Floats x[kChains], y[kChains];
    for (int i = 0; i < kChains; ++i) y[i] = x[i] = Vector::widen(in + i * kLanes);
    evaluate(y);
    if constexpr (kGroup != Group::kNone)
      for (int i = 0; i < kChains; ++i) y[i] = special.template in_floats<kGroup == Group::kInverseSigmoid>(x[i], y[i]);
    for (int i = 0; i < kChains; i += 2)
      Vector::store_codes(out + i * kLanes,
                          finish(Vector::load_codes(in + i * kLanes), Vector::narrow(y[i], y[i + 1])));
  }

  [[gnu::always_inline]] Codes finish(Codes x, Codes y) const {
    const Codes infinity = Vector::all_codes(kFp16Infinity), nan = Vector::all_codes(kFp16Nan);
    if (overflows) y = Vector::select(Vector::greater(Vector::magnitude(y), infinity), y, nan);
    if constexpr (kGroup == Group::kNone)
      return Vector::select(Vector::greater(Vector::magnitude(x), infinity), y, nan);
    return special.in_codes(x, y);
  }

  LookUp<kModel, kGroup == Group::kSinCos, kSmall> look_up;
  bool overflows;
  Ints quadrant, root_flip, root_bias;
  Vector::Special special;
};

void read_codes(const void* x, Fp16Element element, int64_t first, int64_t count, uint16_t* codes) {
  int64_t i = 0;
  if (element == Fp16Element::kF32) {
    const float* in = static_cast<const float*>(x) + first;
    for (; i + kLanes <= count; i += kLanes) Vector::codes_of_f32(in + i, codes + i);
    if (i == count) return;
    float rest[kLanes] = {};
    std::memcpy(rest, in + i, static_cast<size_t>(count - i) * sizeof(float));
    uint16_t out[kLanes];
    Vector::codes_of_f32(rest, out);
    std::memcpy(codes + i, out, static_cast<size_t>(count - i) * sizeof(uint16_t));
    return;
  }
  const uint16_t* in = static_cast<const uint16_t*>(x) + first;
  if (element == Fp16Element::kF16) {
    std::memcpy(codes, in, static_cast<size_t>(count) * sizeof(uint16_t));
    return;
  }
  for (; i + kLanes <= count; i += kLanes) Vector::codes_of_bf16(in + i, codes + i);
  if (i == count) return;
  uint16_t rest[kLanes] = {};
  std::memcpy(rest, in + i, static_cast<size_t>(count - i) * sizeof(uint16_t));
  Vector::codes_of_bf16(rest, rest);
  std::memcpy(codes + i, rest, static_cast<size_t>(count - i) * sizeof(uint16_t));
}

void write_codes(const uint16_t* codes, int64_t count, void* y, Fp16Element element, int64_t first) {
  int64_t i = 0;
  if (element == Fp16Element::kF32) {
    float* out = static_cast<float*>(y) + first;
    for (; i + kLanes <= count; i += kLanes) Vector::f32_of_codes(codes + i, out + i);
    if (i == count) return;
    uint16_t rest[kLanes] = {};
    std::memcpy(rest, codes + i, static_cast<size_t>(count - i) * sizeof(uint16_t));
    float wide[kLanes];
    Vector::f32_of_codes(rest, wide);
    std::memcpy(out + i, wide, static_cast<size_t>(count - i) * sizeof(float));
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(y) + first;
  if (element == Fp16Element::kF16) {
    std::memcpy(out, codes, static_cast<size_t>(count) * sizeof(uint16_t));
    return;
  }
  for (; i + kLanes <= count; i += kLanes) Vector::bf16_of_codes(codes + i, out + i);
  if (i == count) return;
  uint16_t rest[kLanes] = {};
  std::memcpy(rest, codes + i, static_cast<size_t>(count - i) * sizeof(uint16_t));
  Vector::bf16_of_codes(rest, rest);
  std::memcpy(out + i, rest, static_cast<size_t>(count - i) * sizeof(uint16_t));
}

/// evaluate(in, out, count): count is a multiple of kBlock; out may be in. Tiles keep the codes of other types in the
/// first cache.
template <typename Evaluate>
[[gnu::always_inline]] inline void run_tiles(const Fp16FunctionArgs& args, const Evaluate& evaluate) {
  alignas(64) uint16_t tile[kTile];
  for (int64_t first = 0; first < args.count; first += kTile) {
    const int64_t count = args.count - first < kTile ? args.count - first : kTile;
    const int64_t whole = count / kBlock * kBlock;
    const uint16_t* in = tile;
    uint16_t* out = tile;
    if (args.x_element == Fp16Element::kF16) {
      in = static_cast<const uint16_t*>(args.x) + first;
    } else {
      read_codes(args.x, args.x_element, first, count, tile);
    }
    if (args.y_element == Fp16Element::kF16) out = static_cast<uint16_t*>(args.y) + first;
    evaluate(in, out, whole);
    if (whole < count) {
      alignas(64) uint16_t rest[kBlock] = {};
      const size_t bytes = static_cast<size_t>(count - whole) * sizeof(uint16_t);
      std::memcpy(rest, in + whole, bytes);
      evaluate(rest, rest, kBlock);
      std::memcpy(out + whole, rest, bytes);
    }
    if (args.y_element != Fp16Element::kF16) write_codes(tile, count, args.y, args.y_element, first);
  }
}

template <typename Code>
void evaluate_codes(const Fp16Lanes& lanes, const uint16_t* in, uint16_t* out, int64_t count) {
  const Code function(lanes);
  for (int64_t i = 0; i < count; i += kBlock) function(in + i, out + i);
}

using EvaluateCodes = void (*)(const Fp16Lanes& lanes, const uint16_t* in, uint16_t* out, int64_t count);

template <Fp16Model kModel, Group kGroup>
EvaluateCodes choose_size(const Fp16Lanes& lanes) {
  return lanes.levels == 4 ? evaluate_codes<Function<kModel, kGroup, true>>
                           : evaluate_codes<Function<kModel, kGroup, false>>;
}

template <Fp16Model kModel>
EvaluateCodes choose_reduction(const Fp16Lanes& lanes) {
  switch (lanes.reduction) {
    case Fp16Reduction::kNone: break;
    case Fp16Reduction::kSin:
    case Fp16Reduction::kCos: return choose_size<kModel, Group::kSinCos>(lanes);
    case Fp16Reduction::kExp: return choose_size<kModel, Group::kExp>(lanes);
    case Fp16Reduction::kLog: return choose_size<kModel, Group::kLog>(lanes);
    case Fp16Reduction::kReciprocal: return choose_size<kModel, Group::kReciprocal>(lanes);
    case Fp16Reduction::kRsqrt:
    case Fp16Reduction::kSqrt: return choose_size<kModel, Group::kRoot>(lanes);
    case Fp16Reduction::kInverseSigmoid: return choose_size<kModel, Group::kInverseSigmoid>(lanes);
  }
  return choose_size<kModel, Group::kNone>(lanes);
}

void run_interpolation(const Fp16FunctionArgs& args) {
  const Fp16Lanes& lanes = *args.lanes;
  const EvaluateCodes evaluate = lanes.model == Fp16Model::kF32      ? choose_reduction<Fp16Model::kF32>(lanes)
                                 : lanes.model == Fp16Model::kNliGpu ? choose_reduction<Fp16Model::kNliGpu>(lanes)
                                                                     : choose_reduction<Fp16Model::kNliCpu>(lanes);
  run_tiles(args, [&](const uint16_t* in, uint16_t* out, int64_t count) { evaluate(lanes, in, out, count); });
}

void run_direct(const Fp16FunctionArgs& args) {
  run_tiles(args,
            [&](const uint16_t* in, uint16_t* out, int64_t count) { look_up_results(args.results, in, out, count); });
}

/// Reads a row in tiles of whole blocks; what is beyond the row is -infinity, which adds nothing.
struct RowReader {
  RowReader(const Fp16SoftmaxArgs& a, int64_t row) : args(a), first(row * a.columns) {}
  /// The codes from `begin` on; valid until the next call.
  [[gnu::always_inline]] const uint16_t* codes(int64_t begin, int64_t count) {
    if (args.x_element == Fp16Element::kF16 && count % kRowBlock == 0)
      return static_cast<const uint16_t*>(args.x) + first + begin;
    for (int64_t i = count / kRowBlock * kRowBlock; i < count + kRowBlock - 1 && i < kTile; ++i) tile[i] = 0xfc00;
    read_codes(args.x, args.x_element, first + begin, count, tile);
    return tile;
  }
  const Fp16SoftmaxArgs& args;
  int64_t first;
  alignas(64) uint16_t tile[kTile];
};

/// Rows up to this long keep their exponentials; longer ones compute them twice, which costs less than memory would.
constexpr int64_t kKept = 4096;

template <Fp16Model kModel, bool kSmall>
void softmax_rows(const Fp16SoftmaxArgs& args) {
  const LookUp<kModel, false, kSmall> look_up(*args.lanes);
  alignas(64) float kept[kKept];
  for (int64_t row = 0; row < args.rows; ++row) {
    RowReader reader(args, row);
    const auto tiles = [&](auto&& body) {
      for (int64_t begin = 0; begin < args.columns; begin += kTile)
        body(begin, args.columns - begin < kTile ? args.columns - begin : kTile);
    };
    // Keys order float16 as signed integers; NaNs are beyond the infinities at either end.
    Codes largest = Vector::all_codes(0x83ff), smallest = largest;
    tiles([&](int64_t begin, int64_t count) {
      const uint16_t* codes = reader.codes(begin, count);
      for (int64_t i = 0; i < count; i += kCodes) {
        const Codes key = Vector::key(Vector::load_codes(codes + i));
        largest = Vector::max(largest, key);
        smallest = Vector::min(smallest, key);
      }
    });
    alignas(64) int16_t keys[2][kCodes];
    Vector::store_codes(reinterpret_cast<uint16_t*>(keys[0]), largest);
    Vector::store_codes(reinterpret_cast<uint16_t*>(keys[1]), smallest);
    int16_t high = keys[0][0], low = keys[1][0];
    for (int i = 1; i < kCodes; ++i) {
      high = keys[0][i] > high ? keys[0][i] : high;
      low = keys[1][i] < low ? keys[1][i] : low;
    }
    constexpr int16_t kMinusInfinityKey = -0x7c01;
    if (high >= static_cast<int16_t>(kFp16Infinity) || high == kMinusInfinityKey || low < kMinusInfinityKey) {
      tiles([&](int64_t begin, int64_t count) {
        for (int64_t i = 0; i < count; ++i) reader.tile[i] = kFp16Nan;
        write_codes(reader.tile, count, args.y, args.y_element, reader.first + begin);
      });
      continue;
    }
    const Floats m = Vector::all(f16_to_f32(static_cast<uint16_t>(high ^ (high < 0 ? 0x7fff : 0))));
    const auto exp_at = [&](const uint16_t* codes, Floats(&e)[kRowChains]) {
      for (int i = 0; i < kRowChains; ++i) e[i] = Vector::sub(Vector::widen(codes + i * kLanes), m);
      exp_of<false>(look_up, e);
    };
    auto sums = Vector::no_sums();
    const bool keep = args.columns <= kKept;
    tiles([&](int64_t begin, int64_t count) {
      const uint16_t* codes = reader.codes(begin, count);
      for (int64_t i = 0; i < count; i += kRowBlock) {
        Floats e[kRowChains];
        exp_at(codes + i, e);
        for (int k = 0; k < kRowChains; ++k) {
          if (keep) Vector::store(kept + begin + i + k * kLanes, e[k]);
          sums = Vector::accumulate(sums, Vector::mul(e[k], Vector::all(0x1p30f)));
        }
      }
    });
    alignas(64) int64_t parts[sizeof sums / sizeof(int64_t)];
    std::memcpy(parts, &sums, sizeof sums);
    int64_t sum = 0;
    for (const int64_t part : parts) sum += part;
    const Floats quotient = Vector::all(fp16_softmax_quotient_of(args, sum));
    tiles([&](int64_t begin, int64_t count) {
      const uint16_t* codes = keep ? nullptr : reader.codes(begin, count);
      const bool direct = args.y_element == Fp16Element::kF16 && count % kRowBlock == 0;
      uint16_t* out = direct ? static_cast<uint16_t*>(args.y) + reader.first + begin : reader.tile;
      for (int64_t i = 0; i < count; i += kRowBlock) {
        Floats e[kRowChains];
        if (keep) {
          for (int k = 0; k < kRowChains; ++k) e[k] = Vector::load(kept + begin + i + k * kLanes);
        } else {
          exp_at(codes + i, e);
        }
        for (int k = 0; k < kRowChains; k += 2)
          Vector::store_codes(out + i + k * kLanes,
                              Vector::narrow(Vector::mul(e[k], quotient), Vector::mul(e[k + 1], quotient)));
      }
      if (!direct) write_codes(reader.tile, count, args.y, args.y_element, reader.first + begin);
    });
  }
}

template <Fp16Model kModel>
void softmax_model(const Fp16SoftmaxArgs& args) {
  if (args.lanes->levels == 4) {
    softmax_rows<kModel, true>(args);
  } else {
    softmax_rows<kModel, false>(args);
  }
}

void run_softmax(const Fp16SoftmaxArgs& args) {
  switch (args.lanes->model) {
    case Fp16Model::kF32: softmax_model<Fp16Model::kF32>(args); break;
    case Fp16Model::kNliGpu: softmax_model<Fp16Model::kNliGpu>(args); break;
    case Fp16Model::kNliCpu: softmax_model<Fp16Model::kNliCpu>(args); break;
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_TABLE_FP16_X86_BODY_H_
