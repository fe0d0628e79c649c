// SPDX-License-Identifier: Apache-2.0
// Times of cuBLASLt's products, out[m][n] = scale * sum over k of x[m][k] * w[n][k], of int8 codes or float16, beside
// src/product/cuda/product_bench.cc and linear layers: every algorithm that its heuristic proposes, of which the
// fastest counts. Rows of its result are compared with the host's. One JSON object a line.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/half.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::testing::check_cuda;
using isobit::testing::device_memory;
using isobit::testing::DeviceMemory;

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kRepeats = 21;

/// Of x and w, of sums and of the result.
struct Types {
  const char* name;
  cudaDataType_t in, out, scale;
  cublasComputeType_t sum;
  size_t in_bytes, out_bytes;
};
constexpr Types kTypes[] = {
    {"int8_int32", CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, 1, 4},
    {"int8", CUDA_R_8I, CUDA_R_8I, CUDA_R_32F, CUBLAS_COMPUTE_32I, 1, 1},
    {"float16", CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 2, 2},
};

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", what, cublasLtGetStatusString(status));
  std::exit(1);
}

std::string version_text() {
  const size_t version = cublasLtGetVersion();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// A number of each type as the host reads it.
double number(cudaDataType_t type, const std::byte* from, size_t index) {
  const auto read = [&](auto value) {
    std::memcpy(&value, from + index * sizeof value, sizeof value);
    return value;
  };
  if (type == CUDA_R_8I) return read(int8_t{});
  if (type == CUDA_R_32I) return read(int32_t{});
  return isobit::f16_to_f32(read(uint16_t{}));
}

/// Rows of values of every size, which repeat a block.
class Values {
 public:
  Values(const Types& types, int64_t count, int64_t copies, uint64_t seed)
      : type_(types.in),
        count_(static_cast<size_t>(std::min(count, isobit::testing::kRandomBlock))),
        copy_bytes_(static_cast<size_t>(count) * types.in_bytes) {
    if (type_ == CUDA_R_8I) {
      block_ = isobit::testing::random_bytes(count_, seed);
    } else {
      const std::vector<uint16_t> halves = isobit::testing::random_halves(count_, seed);
      const auto bytes = std::as_bytes(std::span(halves));
      block_.assign(bytes.begin(), bytes.end());
    }
    memory_ = device_memory(copy_bytes_ * static_cast<size_t>(copies));
    const DeviceMemory one = isobit::testing::repeated(block_, copy_bytes_);
    for (int64_t copy = 0; copy < copies; ++copy)
      check_cuda(cudaMemcpy(at(copy), one.get(), copy_bytes_, cudaMemcpyDeviceToDevice), "copies");
  }
  [[nodiscard]] std::byte* at(int64_t copy) const { return memory_.get() + static_cast<size_t>(copy) * copy_bytes_; }
  [[nodiscard]] double operator[](int64_t index) const {
    return number(type_, block_.data(), static_cast<size_t>(index) % count_);
  }

 private:
  cudaDataType_t type_;
  size_t count_, copy_bytes_;
  std::vector<std::byte> block_;
  DeviceMemory memory_;
};

/// In cuBLAS's order, column by column: out^T [n, m] is w^T, transposed, [k, n] times x^T [k, m]. It has no other for
/// int8. `copies` of w take turns.
class Product {
 public:
  Product(cublasLtHandle_t handle, const Types& types, int64_t m, int64_t n, int64_t k, int64_t copies)
      : handle_(handle), types_(types), m_(m), n_(n), k_(k), x_(types, m * k, 1, 1), w_(types, n * k, copies, 2) {
    check_cublas(cublasLtMatmulDescInit(&operation_, types.sum, types.scale), "operation");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_cublas(
        cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "operation");
    const auto rows_of = [](cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t rows, int64_t columns) {
      check_cublas(
          cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), columns),
          "layout");
    };
    rows_of(w_layout_, types.in, n, k);
    rows_of(x_layout_, types.in, m, k);
    rows_of(out_layout_, types.out, m, n);
  }

  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> algorithms(int most) {
    cublasLtMatmulPreferenceOpaque_t preference{};
    check_cublas(cublasLtMatmulPreferenceInit(&preference), "preference");
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &kWorkspaceBytes, sizeof kWorkspaceBytes),
                 "preference");
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &w_layout_, &x_layout_, &out_layout_, &out_layout_,
                                       &preference, most, results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check_cublas(status, "algorithms");
    std::vector<cublasLtMatmulAlgo_t> found;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      // What does not run in spite of that is left out, too.
      if (results[i].state == CUBLAS_STATUS_SUCCESS && run(results[i].algo, 0, nullptr) == CUBLAS_STATUS_SUCCESS)
        found.push_back(results[i].algo);
    check_cuda(cudaDeviceSynchronize(), "algorithms");
    return found;
  }
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm, int64_t copy, cudaStream_t stream) {
    const int32_t one = 1, zero = 0;
    const float factor = scale(), no_factor = 0;
    const bool integers = types_.scale == CUDA_R_32I;
    return cublasLtMatmul(handle_, &operation_, integers ? static_cast<const void*>(&one) : &factor, w_.at(copy),
                          &w_layout_, x_.at(0), &x_layout_, integers ? static_cast<const void*>(&zero) : &no_factor,
                          out_.get(), &out_layout_, out_.get(), &out_layout_, &algorithm, workspace_.get(),
                          kWorkspaceBytes, stream);
  }
  /// Ends the program where a result differs from the host's: of all of them, or of many from all over.
  void check(const cublasLtMatmulAlgo_t& algorithm) {
    const auto row_bytes = static_cast<size_t>(n_) * types_.out_bytes;
    check_cuda(cudaMemset(out_.get(), 0x7f, static_cast<size_t>(m_) * row_bytes), "results");
    check_cuda(cudaDeviceSynchronize(), "results");
    check_cublas(run(algorithm, 0, nullptr), "product");
    check_cuda(cudaDeviceSynchronize(), "product");
    std::vector<std::byte> row(row_bytes);
    const int64_t step = m_ <= kCheckedRows ? 1 : m_ / 3;  // the others: first, last, and some between
    const int64_t rows = std::min(m_, kCheckedRows);
    const int64_t column_step = rows * n_ * k_ / kMostChecked + 1;
    for (int64_t m = 0; m < m_; m = m + 1 < m_ ? std::min(m + step, m_ - 1) : m_) {
      check_cuda(
          cudaMemcpy(row.data(), out_.get() + static_cast<size_t>(m) * row_bytes, row_bytes, cudaMemcpyDeviceToHost),
          "results");
      for (int64_t n = 0; n < n_; n += column_step) {
        double sum = 0;
        for (int64_t k = 0; k < k_; ++k) sum += x_[m * k_ + k] * w_[n * k_ + k];
        const double wanted = result(sum);
        const double found = number(types_.out, row.data(), static_cast<size_t>(n));
        if (!(std::abs(found - wanted) <= tolerance())) {
          std::fprintf(stderr, "%s: out[%lld][%lld] of %lld x %lld x %lld is %g, must be %g\n", types_.name,
                       static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(m_),
                       static_cast<long long>(n_), static_cast<long long>(k_), found, wanted);
          std::exit(1);
        }
      }
    }
  }

 private:
  static constexpr int64_t kCheckedRows = 64;                // all rows of a product that has no more, some of others
  static constexpr int64_t kMostChecked = int64_t{1} << 24;  // products of numbers

  /// Of results in int8: their deviation is about 32.
  [[nodiscard]] float scale() const {
    return types_.out == CUDA_R_8I ? 32.0f / (5461.0f * std::sqrt(static_cast<float>(k_))) : 1.0f;
  }
  [[nodiscard]] double result(double sum) const {
    const double scaled = sum * static_cast<double>(scale());
    return types_.out == CUDA_R_8I ? std::clamp(scaled, -128.0, 127.0) : scaled;
  }
  /// Of float16: partial sums are float32, or wider than float16 at least.
  [[nodiscard]] double tolerance() const {
    if (types_.out == CUDA_R_32I) return 0;
    return types_.out == CUDA_R_8I ? 0.51 : 2e-3 * std::sqrt(static_cast<double>(k_));
  }

  cublasLtHandle_t handle_;
  Types types_;
  int64_t m_;
  int64_t n_;
  int64_t k_;
  Values x_;  // [m, k]
  Values w_;  // [n, k]
  DeviceMemory out_ = device_memory(static_cast<size_t>(m_ * n_) * types_.out_bytes);
  DeviceMemory workspace_ = device_memory(kWorkspaceBytes);
  cublasLtMatmulDescOpaque_t operation_{};
  cublasLtMatrixLayoutOpaque_t x_layout_{};
  cublasLtMatrixLayoutOpaque_t w_layout_{};
  cublasLtMatrixLayoutOpaque_t out_layout_{};
};

/// Of one product: the fastest of all algorithms, which is checked. Cold, only those that seem fastest are timed well.
nlohmann::ordered_json time(cublasLtHandle_t handle, const Types& types, int64_t m, int64_t n, int64_t k, bool cold,
                            int most) {
  constexpr size_t kTimedWell = 3;
  const int64_t copies = cold ? isobit::testing::copies_beyond_cache(n * k * static_cast<int64_t>(types.in_bytes)) : 1;
  Product product(handle, types, m, n, k, copies);
  std::vector<std::pair<double, cublasLtMatmulAlgo_t>> timed;
  for (const cublasLtMatmulAlgo_t& algorithm : product.algorithms(most)) timed.emplace_back(0, algorithm);
  nlohmann::ordered_json line = {{"cublaslt", version_text()}, {"types", types.name}, {"M", m}, {"N", n}, {"K", k}};
  line["algorithms"] = timed.size();
  if (timed.empty()) {
    line["refused"] = "cuBLASLt has no algorithm for this product";
    return line;
  }
  const auto launch_of = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return [&](int64_t copy, cudaStream_t stream) { check_cublas(product.run(algorithm, copy, stream), "product"); };
  };
  for (auto& [us, algorithm] : timed)
    us = cold ? isobit::testing::estimate_in_turn(copies, launch_of(algorithm))
              : isobit::testing::microseconds_of_one(1, 1, launch_of(algorithm), kRepeats);
  const double first_us = timed.front().first;
  const auto by_time = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(timed.begin(), timed.end(), by_time);
  if (cold) {
    timed.resize(std::min(timed.size(), kTimedWell));
    for (auto& [us, algorithm] : timed) us = isobit::testing::microseconds_in_turn(copies, launch_of(algorithm));
  }
  const auto& [best_us, best] = *std::min_element(timed.begin(), timed.end(), by_time);
  product.check(best);
  line["us"] = best_us;
  if (!cold) line["first_us"] = first_us;
  line["copies"] = copies;
  line["tops"] = 2e-6 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / best_us;
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times cuBLASLt's products on the current CUDA device, each of its algorithms.");
  std::vector<std::tuple<int64_t, int64_t, int64_t>> shapes;
  std::vector<std::string> types = {"int8_int32"};
  bool cold = false;
  int most = 16;
  app.add_option("--shape", shapes, "M N K: rows of x, results of a row, codes of a row; more than once")->required();
  app.add_option("--types", types, "int8_int32, int8 (to int8), float16")->delimiter(',');
  app.add_option("--algorithms", most, "at most so many")->check(CLI::Range(1, 100));
  app.add_flag("--cold", cold, "copies of w in turn, more than three times the second-level cache together");
  CLI11_PARSE(app, argc, argv);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublasLtCreate(&handle), "cublasLtCreate");
  for (const auto& [m, n, k] : shapes) {
    for (const std::string& name : types) {
      const auto* const found =
          std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Types& t) { return name == t.name; });
      if (found == std::end(kTypes)) {
        std::fprintf(stderr, "--types has '%s', must be int8_int32, int8 or float16\n", name.c_str());
        return 1;
      }
      nlohmann::ordered_json line = {{"device", properties.name}};
      line.update(time(handle, *found, m, n, k, cold, most));
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
    }
  }
  check_cublas(cublasLtDestroy(handle), "cublasLtDestroy");
  return 0;
}
