// SPDX-License-Identifier: Apache-2.0
// Times of cuBLASLt's product of int8 codes with sums in int32, out[m][n] = sum over k of x[m][k] * w[n][k], on shapes
// of src/product/cuda/product_bench.cc: every algorithm that its heuristic proposes, of which the fastest counts. Rows
// of its result are compared with the host's. One JSON object a line.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::testing::check_cuda;
using isobit::testing::device_memory;
using isobit::testing::DeviceMemory;

constexpr int kMostAlgorithms = 16;
constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int64_t kCheckedRows = 64;  // all rows of a product that has no more, some of others

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", what, cublasLtGetStatusString(status));
  std::exit(1);
}

std::vector<int8_t> random_codes(isobit::Random& random, int64_t count) {
  std::vector<int8_t> codes(static_cast<size_t>(count));
  for (int8_t& code : codes) code = static_cast<int8_t>(random.next() >> 56);
  return codes;
}

DeviceMemory on_device(const std::vector<int8_t>& codes) {
  DeviceMemory memory = device_memory(codes.size());
  check_cuda(cudaMemcpy(memory.get(), codes.data(), codes.size(), cudaMemcpyHostToDevice), "codes");
  return memory;
}

/// In cuBLAS's order, column by column: out^T [n, m] is w^T, transposed, [k, n] times x^T [k, m]. It has no other for
/// int8.
class Product {
 public:
  Product(cublasLtHandle_t handle, int64_t m, int64_t n, int64_t k)
      : handle_(handle),
        m_(m),
        n_(n),
        k_(k),
        random_(1),
        x_(random_codes(random_, m * k)),
        w_(random_codes(random_, n * k)) {
    check_cublas(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32I, CUDA_R_32I), "operation");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_cublas(
        cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "operation");
    const auto rows_of = [](cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t rows, int64_t columns) {
      check_cublas(
          cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), columns),
          "layout");
    };
    rows_of(w_layout_, CUDA_R_8I, n, k);
    rows_of(x_layout_, CUDA_R_8I, m, k);
    rows_of(out_layout_, CUDA_R_32I, m, n);
  }

  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> algorithms() {
    cublasLtMatmulPreferenceOpaque_t preference{};
    check_cublas(cublasLtMatmulPreferenceInit(&preference), "preference");
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &kWorkspaceBytes, sizeof kWorkspaceBytes),
                 "preference");
    cublasLtMatmulHeuristicResult_t results[kMostAlgorithms]{};
    int count = 0;
    check_cublas(cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &w_layout_, &x_layout_, &out_layout_,
                                                &out_layout_, &preference, kMostAlgorithms, results, &count),
                 "algorithms");
    std::vector<cublasLtMatmulAlgo_t> found;
    for (int i = 0; i < count; ++i)
      // What does not run in spite of that is left out, too.
      if (results[i].state == CUBLAS_STATUS_SUCCESS && run(results[i].algo, nullptr) == CUBLAS_STATUS_SUCCESS)
        found.push_back(results[i].algo);
    check_cuda(cudaDeviceSynchronize(), "algorithms");
    return found;
  }
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) {
    const int32_t one = 1;
    const int32_t zero = 0;
    return cublasLtMatmul(handle_, &operation_, &one, device_w_.get(), &w_layout_, device_x_.get(), &x_layout_, &zero,
                          out_.get(), &out_layout_, out_.get(), &out_layout_, &algorithm, workspace_.get(),
                          kWorkspaceBytes, stream);
  }
  /// Ends the program where a result differs from the host's.
  void check(const cublasLtMatmulAlgo_t& algorithm) {
    const auto row_bytes = static_cast<size_t>(n_) * sizeof(int32_t);
    check_cuda(cudaMemset(out_.get(), 0x7f, static_cast<size_t>(m_) * row_bytes), "results");
    check_cuda(cudaDeviceSynchronize(), "results");
    check_cublas(run(algorithm, nullptr), "product");
    check_cuda(cudaDeviceSynchronize(), "product");
    std::vector<int32_t> row(static_cast<size_t>(n_));
    const int64_t step = m_ <= kCheckedRows ? 1 : m_ / 3;  // the others: first, last, and some between
    for (int64_t m = 0; m < m_; m = m + 1 < m_ ? std::min(m + step, m_ - 1) : m_) {
      check_cuda(
          cudaMemcpy(row.data(), out_.get() + static_cast<size_t>(m) * row_bytes, row_bytes, cudaMemcpyDeviceToHost),
          "results");
      for (int64_t n = 0; n < n_; ++n) {
        int32_t sum = 0;
        for (int64_t k = 0; k < k_; ++k)
          sum += int32_t{x_[static_cast<size_t>(m * k_ + k)]} * w_[static_cast<size_t>(n * k_ + k)];
        if (const int32_t other = row[static_cast<size_t>(n)]; other != sum) {
          std::fprintf(stderr, "out[%lld][%lld] of %lld x %lld x %lld is %d, must be %d\n", static_cast<long long>(m),
                       static_cast<long long>(n), static_cast<long long>(m_), static_cast<long long>(n_),
                       static_cast<long long>(k_), other, sum);
          std::exit(1);
        }
      }
    }
  }

 private:
  cublasLtHandle_t handle_;
  int64_t m_;
  int64_t n_;
  int64_t k_;
  isobit::Random random_;
  std::vector<int8_t> x_;  // [m, k]
  std::vector<int8_t> w_;  // [n, k]
  DeviceMemory device_x_ = on_device(x_);
  DeviceMemory device_w_ = on_device(w_);
  DeviceMemory out_ = device_memory(static_cast<size_t>(m_ * n_) * sizeof(int32_t));
  DeviceMemory workspace_ = device_memory(kWorkspaceBytes);
  cublasLtMatmulDescOpaque_t operation_{};
  cublasLtMatrixLayoutOpaque_t x_layout_{};
  cublasLtMatrixLayoutOpaque_t w_layout_{};
  cublasLtMatrixLayoutOpaque_t out_layout_{};
};

std::string version_text() {
  const size_t version = cublasLtGetVersion();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times cuBLASLt's product of int8 codes on the current CUDA device, each of its algorithms.");
  std::vector<std::tuple<int64_t, int64_t, int64_t>> shapes;
  app.add_option("--shape", shapes, "M N K: rows of x, results of a row, codes of a row; more than once")->required();
  CLI11_PARSE(app, argc, argv);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublasLtCreate(&handle), "cublasLtCreate");
  for (const auto& [m, n, k] : shapes) {
    Product product(handle, m, n, k);
    const std::vector<cublasLtMatmulAlgo_t> algorithms = product.algorithms();
    if (algorithms.empty()) {
      std::fprintf(stderr, "cuBLASLt has no algorithm for this product\n");
      return 1;
    }
    double best_us = std::numeric_limits<double>::infinity();
    double first_us = 0;
    const cublasLtMatmulAlgo_t* best = nullptr;
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
      const double us = isobit::testing::median_microseconds(
          [&](cudaStream_t stream) { check_cublas(product.run(algorithm, stream), "product"); });
      if (best == nullptr) first_us = us;
      if (us >= best_us) continue;
      best_us = us;
      best = &algorithm;
    }
    product.check(*best);
    const nlohmann::ordered_json line = {
        {"device", properties.name},
        {"cublaslt", version_text()},
        {"M", m},
        {"N", n},
        {"K", k},
        {"us", best_us},
        {"first_us", first_us},
        {"algorithms", algorithms.size()},
        {"tops", 2e-6 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / best_us}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  check_cublas(cublasLtDestroy(handle), "cublasLtDestroy");
  return 0;
}
