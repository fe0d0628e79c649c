// SPDX-License-Identifier: Apache-2.0
#include "gru/proof.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/codes.h"

namespace isobit {
namespace {

constexpr Int128 kS64Limit = static_cast<Int128>(INT64_MAX);
constexpr Int128 kS32Limit = static_cast<Int128>(INT32_MAX);
constexpr Int128 kF32Limit = static_cast<Int128>(1) << 24;
constexpr Int128 kF64Limit = static_cast<Int128>(1) << 53;
constexpr Int128 kF32ResultLimit = (static_cast<Int128>(1) << 20);
constexpr Int128 kF64ResultLimit = (static_cast<Int128>(1) << 49);

Int128 absolute(Int128 x) { return x < 0 ? -x : x; }

/// Collects rows of the proof and remembers the first that fails.
class Prover {
 public:
  Prover(GruProof& proof, const std::string& layer) : proof_(proof), layer_(layer) {}

  /// An intermediate with its largest magnitude; `where` is the row that has it, for the message.
  void add(const std::string& name, Int128 bound, const std::string& where = {}) {
    if (bound > kS32Limit) values_s32_ = false;
    add_product(name, bound, where);
  }
  /// The same of a product with a multiplier, which is 1 or the factor of 64 bits.
  void add_product(const std::string& name, Int128 bound, const std::string& where = {}) {
    proof_.rows.push_back({name, to_decimal(bound), bound <= kS32Limit ? 32 : 64});
    if (bound > kS64Limit && failure_.ok())
      failure_ = Status(StatusCode::kOverflow, layer_ + ": " + name + where + " can reach " + to_decimal(bound) +
                                                   ", must stay within 9223372036854775807 (int64); use fewer bits "
                                                   "for its operands");
  }

  /// A rescale after the accumulators: operand and result.
  Int128 add_rescale(const std::string& name, Int128 operand, const RescaleParameters& ratio) {
    return add_rescale(name, operand, operand, ratio);
  }
  /// in_float: a tighter bound of the operand for float and double lanes.
  Int128 add_rescale(const std::string& name, Int128 operand, Int128 in_float, const RescaleParameters& ratio) {
    const Int128 result = bound_rescale(operand, ratio);
    add_product(name + " (operand)", bound_multiply(operand, ratio.multiplier));
    add(name, result);
    note_integer_lanes(operand, ratio);
    note_float_lanes(in_float, ratio);
    return result;
  }

  /// What the vector kernels need of a rescale: they round by adding at most one half before the shift.
  void note_lanes(Int128 operand, const RescaleParameters& ratio) {
    note_integer_lanes(operand, ratio);
    note_float_lanes(operand, ratio);
  }
  void note_integer_lanes(Int128 operand, const RescaleParameters& ratio) {
    const Int128 half = ratio.shift > 0 ? static_cast<Int128>(1) << (std::min(ratio.shift, 100) - 1) : 0;
    const Int128 headroom =
        std::max(bound_add(bound_multiply(operand, ratio.multiplier), half), bound_rescale(operand, ratio));
    if (ratio.multiplier != 1 || ratio.shift > 30 || ratio.shift < -30 || headroom > kS32Limit)
      proof_.gates_s32 = false;
    if (ratio.shift > 62 || headroom > kS64Limit) proof_.gates_s64 = false;
  }
  void note_float_lanes(Int128 operand, const RescaleParameters& ratio) {
    const Int128 result = bound_rescale(operand, ratio);
    if (operand > kF32Limit || result > kF32ResultLimit || ratio.multiplier > kF32Limit || ratio.shift > 100)
      proof_.gates_f32 = false;
    if (operand > kF64Limit || result > kF64ResultLimit) proof_.gates_f64 = false;
  }

  /// A sum or product that the kernels hold in a lane.
  void add_lane(const std::string& name, Int128 bound) { add_lane(name, bound, bound); }
  void add_lane(const std::string& name, Int128 bound, Int128 in_float) {
    add(name, bound);
    if (bound > kS32Limit) proof_.gates_s32 = false;
    if (in_float > kF32Limit) proof_.gates_f32 = false;
    if (in_float > kF64Limit) proof_.gates_f64 = false;
  }

  [[nodiscard]] const Status& failure() const { return failure_; }
  /// Of what was added since the last call: all but products fits int32.
  bool take_values_s32() { return std::exchange(values_s32_, true); }

 private:
  GruProof& proof_;
  const std::string& layer_;
  Status failure_;
  bool values_s32_ = true;
};

/// The largest bound over the rows, and the first row that has it.
struct Worst {
  Int128 bound = 0;
  int64_t row = 0;
  void see(Int128 other, int64_t other_row) {
    if (other <= bound) return;
    bound = other;
    row = other_row;
  }
};

/// One linear result: the dot product, the zero-point term, the bias and their sum over all rows, then the rescale.
GruLinearWidths add_linear(Prover& prover, const std::string& out, const CodeMatrix& weights, const Grid& activation,
                           const std::vector<Int128>& bias, const std::vector<RescaleParameters>& bias_to_acc,
                           const std::vector<RescaleParameters>& acc_to_out, const std::vector<Int128>& dot,
                           const Grid& grid) {
  const std::string matrix = out == kGruTensorNames[kIh] ? " of W " : " of R ";
  const std::vector<RowSums> sums = row_sums(weights);
  Worst product, zero, biased, accumulator, operand, result;
  for (size_t c = 0; c < acc_to_out.size(); ++c) {
    const auto row = static_cast<int64_t>(c);
    const LinearRowBounds bounds = linear_row_bounds(bias[c], bias_to_acc[c], dot[c], acc_to_out[c]);
    product.see(bound_multiply(sums[c].magnitude, largest_code(activation)), row);
    zero.see(bound_multiply(absolute(sums[c].sum), absolute(activation.zero_point)), row);
    biased.see(std::max(bounds.bias, bounds.bias_product), row);
    accumulator.see(bounds.accumulator, row);
    operand.see(bounds.product, row);
    result.see(bound_rescale(bounds.accumulator, acc_to_out[c]), row);
    prover.note_lanes(bounds.accumulator, acc_to_out[c]);
  }
  const auto add = [&](const char* name, const Worst& worst) {
    prover.add(out + name, worst.bound, matrix + row_text(worst.row, weights.rows() / 3));
  };
  add(": sum of weight * code", product);
  add(": zero point * sum of weights", zero);
  add(": bias on the accumulator", biased);
  add(": accumulator", accumulator);
  add(": accumulator * multiplier", operand);
  add(": rescaled accumulator", result);
  prover.add_lane(out + ": before its clamp", bound_add(result.bound, absolute(grid.zero_point)));
  return {product.bound, accumulator.bound, bound_add(result.bound, absolute(grid.zero_point))};
}

std::vector<Int128> dot_bounds(const CodeMatrix& weights, const Grid& activation) {
  const Int128 difference = largest_difference(activation);
  std::vector<Int128> bounds;
  for (const RowSums& sums : row_sums(weights)) bounds.push_back(bound_multiply(sums.magnitude, difference));
  return bounds;
}

std::vector<Int128> bias_bounds(const CodeMatrix& bias, const Grid& grid) {
  std::vector<Int128> bounds(static_cast<size_t>(bias.rows()));
  for (int64_t c = 0; c < bias.rows(); ++c)
    bounds[static_cast<size_t>(c)] = bias.at(c, 0) == 0 ? 0 : largest_code(grid);
  return bounds;
}

/// Largest |code - z| and |one - code| that a table can give.
Int128 table_difference(const ActivationTable& table, Int128 from) {
  return std::max(absolute(table.low - from), absolute(table.high - from));
}

}  // namespace

std::vector<RowSums> row_sums(const CodeMatrix& codes) {
  std::vector<RowSums> rows(static_cast<size_t>(codes.rows()));
  with_code_type(codes.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using Partial = std::conditional_t<sizeof(T) < sizeof(int32_t), int32_t, int64_t>;
    constexpr int64_t kTogether = 4096;  // within int32 for 16 bits
    const T* of_row = reinterpret_cast<const T*>(codes.data());
    for (RowSums& row : rows) {
      for (int64_t first = 0; first < codes.columns(); first += kTogether) {
        Partial sum = 0, magnitude = 0;
        for (int64_t k = first; k < std::min(codes.columns(), first + kTogether); ++k) {
          const Partial code = of_row[k];
          sum += code;
          magnitude += code < 0 ? -code : code;
        }
        row.sum += sum;
        row.magnitude += magnitude;
      }
      of_row += codes.columns();
    }
  });
  return rows;
}

GruOperandBounds operand_bounds(const GruLayerParameters& p) {
  GruOperandBounds bounds;
  bounds.bias_w = bias_bounds(p.bw, p.grids[kBw]);
  bounds.bias_r = bias_bounds(p.br, p.grids[kBr]);
  bounds.dot_x = dot_bounds(p.W, p.grids[kX]);
  bounds.dot_h = dot_bounds(p.R, p.grids[kH]);
  return bounds;
}

std::string row_text(int64_t row, int64_t hidden_size) {
  return "row " + std::to_string(row) + " (gate " + "urn"[row / hidden_size] + ", unit " +
         std::to_string(row % hidden_size) + ")";
}

Result<GruProof> prove_no_overflow(const GruLayerParameters& p, const std::string& layer_name) {
  GruProof proof;
  proof.gates_s32 = true;
  proof.gates_s64 = true;
  proof.gates_f32 = true;
  proof.gates_f64 = true;
  Prover prover(proof, layer_name);
  const GruOperandBounds operands = operand_bounds(p);
  proof.ih = add_linear(prover, "ih", p.W, p.grids[kX], operands.bias_w, p.bw_to_acc, p.acc_to_ih, operands.dot_x,
                        p.grids[kIh]);
  proof.hh = add_linear(prover, "hh", p.R, p.grids[kH], operands.bias_r, p.br_to_acc, p.acc_to_hh, operands.dot_h,
                        p.grids[kHh]);
  proof.acc_x_s32 = proof.ih.accumulator <= kS32Limit;
  proof.acc_h_s32 = proof.hh.accumulator <= kS32Limit;
  prover.take_values_s32();
  // What follows is the cell. Its verdict is that of the whole where the accumulators' is good.
  const bool sums_f32 = proof.gates_f32, sums_f64 = proof.gates_f64;
  proof.gates_f32 = proof.gates_f64 = true;
  const Int128 ih = largest_difference(p.grids[kIh]);
  const Int128 hh = largest_difference(p.grids[kHh]);
  for (int gate = 0; gate < 2; ++gate) {
    const GruTensor tensor = gate == 0 ? kUIn : kRIn;
    const std::string name(kGruTensorNames[tensor]);
    const Int128 from_ih = prover.add_rescale("ih -> " + name, ih, p.ih_to_gate[gate]);
    const Int128 from_hh = prover.add_rescale("hh -> " + name, hh, p.hh_to_gate[gate]);
    prover.add_lane(name + " before its clamp",
                    bound_add(bound_add(from_ih, from_hh), absolute(p.grids[tensor].zero_point)));
  }
  const Int128 r_hh = bound_multiply(table_difference(p.tables[1], p.grids[kRGate].zero_point), hh);
  prover.add_lane("r * hh", r_hh);
  const Int128 from_ih = prover.add_rescale("ih -> n_in", ih, p.ih_to_gate[2]);
  const Int128 from_rhh = prover.add_rescale("r * hh -> n_in", r_hh, p.rhh_to_n);
  prover.add_lane("n_in before its clamp", bound_add(bound_add(from_ih, from_rhh), absolute(p.grids[kNIn].zero_point)));
  const Int128 n_on_h = prover.add_rescale("n -> h", table_difference(p.tables[2], p.grids[kN].zero_point), p.n_to_h);
  const Int128 kept =
      bound_multiply(table_difference(p.tables[0], p.grids[kU].zero_point), largest_difference(p.grids[kH]));
  const Int128 fresh = bound_multiply(table_difference(p.tables[0], p.one), n_on_h);
  const Int128 mixed = bound_add(kept, fresh);
  // Where u and 1 - u are both positive they add up to one - z_u, so the mixture is as large as its larger part at
  // most.
  const Int128 z_u = p.grids[kU].zero_point;
  const bool is_between = p.tables[0].low >= z_u && p.tables[0].high <= p.one;
  const Int128 convex = bound_multiply(p.one - z_u, std::max<Int128>(largest_difference(p.grids[kH]), n_on_h));
  const Int128 in_float = is_between ? std::min(mixed, convex) : mixed;
  prover.add_lane("u * h + (1 - u) * n", mixed, in_float);
  const Int128 h = prover.add_rescale("u -> 1", mixed, in_float, p.u_to_one);
  prover.add_lane("h before its clamp", bound_add(h, absolute(p.grids[kH].zero_point)));
  if (!prover.failure().ok()) return prover.failure();
  proof.cell_s32 = prover.take_values_s32() && ih <= kS32Limit && hh <= kS32Limit;
  proof.cell_f32 = proof.gates_f32;
  proof.cell_f64 = proof.gates_f64;
  proof.gates_f32 = sums_f32 && proof.cell_f32;
  proof.gates_f64 = sums_f64 && proof.cell_f64;
  return proof;
}

}  // namespace isobit
