// SPDX-License-Identifier: Apache-2.0
#include "conv/pixel_weights.h"

#include <cstring>
#include <utility>

#include "core/bits.h"
#include "linear/layer_parts.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr int64_t kBlockStep = 8;  // groups of section 9

/// Where the numbers of a group of the new matrix come from.
struct Source {
  const LowBitMatrix& weights;
  int64_t taps;
  bool shared;       // rows are (o), with one group for all (r, s)
  int64_t channels;  // C / groups

  [[nodiscard]] int64_t row(int64_t o, int64_t tap) const { return shared ? o : o * taps + tap; }
  [[nodiscard]] int64_t first_column(int64_t tap) const { return shared ? tap * channels : 0; }
};

/// A code that stands for zero, or the nearest.
uint32_t code_of_zero(const LowBitMatrix& weights, int64_t row, int64_t group) {
  const int32_t most = (1 << weights.parameters().bits) - 1;
  return static_cast<uint32_t>(std::min(weights.zero_point(row, group), most));
}

/// Whether the elements that fill up blocks may be any number of x: their weights are zero, and no sum counts them.
Status check_filled(const LowBitMatrix& weights, const std::string& name) {
  const LowBitParameters& p = weights.parameters();
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kUnsupported,
                  name + ": blocks of channels are filled up to a multiple of " + std::to_string(kBlockStep) +
                      ", which int8_asymmetric does not support with " + why + "; use int8, or such channels");
  };
  if (p.kind == LowBitKind::kOffset) return refuse("weights of the kind offset");
  if (p.kind == LowBitKind::kSymmetric && p.bits == 1) return refuse("symmetric weights of 1 bit");
  if (p.kind == LowBitKind::kZeroPoint)
    for (int64_t n = 0; n < p.rows; ++n)
      if (weights.zero_point(n, weights.groups() - 1) == 1 << p.bits)
        return refuse("a zero point of " + std::to_string(1 << p.bits) + ", in row " + std::to_string(n));
  return {};
}

/// Rows [first, first + count) of o.
Result<LowBitMatrix> group_weights(const Source& from, const PixelBlocks& blocks, int64_t group, int64_t first,
                                   int64_t count, const std::string& name) {
  const LowBitParameters& in = from.weights.parameters();
  LowBitParameters out;
  out.rows = count;
  out.columns = from.taps * blocks.padded;
  out.bits = in.bits;
  out.group = group;
  out.kind = in.kind;
  out.zero_point = in.zero_point;
  const int64_t groups = low_bit_groups(out.columns, group), own = from.weights.groups();
  const int64_t row_bytes = low_bit_row_bytes(out.columns, in.bits);
  out.codes = Array::zeros(Dtype::kU8, {count, row_bytes});
  const auto numbers = [&](const Array& of) {
    return of.bytes.empty() ? Array() : Array::zeros(of.dtype, {count, groups});
  };
  out.scales = numbers(in.scales);
  out.zero_points = numbers(in.zero_points);
  out.offsets = numbers(in.offsets);
  const int64_t groups_of_tap = groups / from.taps;  // 0: one for all
  for (int64_t i = 0; i < count; ++i) {
    auto* const row = out.codes.data<uint8_t>() + i * row_bytes;
    for (int64_t tap = 0; tap < from.taps; ++tap) {
      const int64_t n = from.row(first + i, tap);
      const uint8_t* const codes = in.codes.data<uint8_t>() + n * from.weights.row_bytes();
      for (int64_t c = 0; c < blocks.padded; ++c)
        pack_code(row, tap * blocks.padded + c, in.bits,
                  c < blocks.channels ? unpack_code(codes, from.first_column(tap) + c, in.bits)
                                      : code_of_zero(from.weights, n, own - 1));
    }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t n = from.row(first + i, groups_of_tap == 0 ? 0 : g / groups_of_tap);
      const int64_t at = n * own + (from.shared || groups_of_tap == 0 ? 0 : g % groups_of_tap);
      const auto copy = [&](const Array& of, Array& to) {
        if (of.bytes.empty()) return;
        const size_t bytes = size_in_bytes(of.dtype);
        std::memcpy(to.bytes.data() + static_cast<size_t>(i * groups + g) * bytes,
                    of.bytes.data() + static_cast<size_t>(at) * bytes, bytes);
      };
      copy(in.scales, out.scales);
      copy(in.zero_points, out.zero_points);
      copy(in.offsets, out.offsets);
    }
  }
  return LowBitMatrix::create(std::move(out), name);
}

}  // namespace

Result<PixelWeights> pixel_weights(const ConvShape& shape, const LowBitMatrix& weights, bool one_group, bool asymmetric,
                                   const std::string& name) {
  const int64_t taps = shape.rows.kernel * shape.columns.kernel, channels = shape.group_channels();
  const bool shared = taps > 1 && weights.rows() == shape.outputs && weights.columns() == shape.depth();
  if (!shared && (weights.rows() != shape.outputs * taps || weights.columns() != channels)) {
    const auto size = [](int64_t rows, int64_t columns) {
      return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
    };
    return refuse_linear(name + ": weights are " + size(weights.rows(), weights.columns()) + ", must be " +
                         size(shape.outputs * taps, channels) + " (O * R * S, C / groups), or " +
                         size(shape.outputs, shape.depth()) + " with one group a row");
  }
  if (shared && weights.groups() != 1)
    return refuse_linear(name + ": weights have " + std::to_string(weights.groups()) + " groups a row of all (r, s)," +
                         " must have 1; groups along the channels are for weights [O * R * S, C / groups]");
  PixelWeights out;
  int64_t group = shared ? weights.columns() : weights.parameters().group;
  out.blocks = {channels, channels, group};
  if (taps > 1 && !(shared && one_group)) {
    group = !shared && weights.groups() > 1 ? group : (channels + kBlockStep - 1) / kBlockStep * kBlockStep;
    out.blocks.padded = (channels + group - 1) / group * group;
    out.blocks.block = group;
  }
  if (asymmetric && out.blocks.filled()) ISOBIT_RETURN_IF_ERROR(check_filled(weights, name));
  const int64_t outputs = shape.outputs / shape.groups;
  for (int64_t g = 0; g < shape.groups; ++g) {
    ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix of_group, group_weights({weights, taps, shared, channels}, out.blocks, group,
                                                                 g * outputs, outputs, name));
    out.groups.push_back(std::move(of_group));
  }
  return out;
}

}  // namespace isobit
