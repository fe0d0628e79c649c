// SPDX-License-Identifier: Apache-2.0
// Internal to verify: convolutions, whoever computes: the paths of the CPU (conv.cc), a device (cuda.cc).
#ifndef ISOBIT_VERIFY_CONV_H_
#define ISOBIT_VERIFY_CONV_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "conv/random_float_layer.h"
#include "isobit/conv.h"
#include "isobit/cpu.h"
#include "isobit/status.h"
#include "isobit/verify.h"
#include "verify/linear.h"
#include "verify/operations.h"

namespace isobit {

/// A convolution of static codes, and images that it takes. Of buffers a row is a pixel.
struct StaticConvCase {
  StaticConvParameters parameters{};
  ImageSize image{}, size{};
  int64_t images = 1;
  std::vector<std::byte> x{}, residual{};  // of the pixels one behind the other

  [[nodiscard]] int64_t pixels() const { return images * image.rows * image.columns; }
  [[nodiscard]] int64_t outputs() const { return images * size.rows * size.columns; }  // pixels of y
  /// Codes of the residual, with the stride of y; empty where the layer has none.
  [[nodiscard]] std::vector<std::byte> residual_rows(int64_t y_stride) const;
};
/// Writes y of the buffers; false where the kernel is none for this layer.
using StaticConvRun = std::function<Result<bool>(const StaticConvCase&, LinearBuffers&)>;
/// The same of a ConvLayer, so many images in each call, also of pixels that are not finite.
using ConvRun = std::function<Result<bool>(const RandomConv&, std::span<const int64_t> calls, LinearBuffers&)>;

struct ConvCandidates {
  std::vector<Candidate<ConvRun>> int8{}, per_image{}, floats{};
  std::vector<Candidate<StaticConvRun>> statics{};
  /// Layers are larger, and but for one in 100 the best path of the CPU is the measure.
  bool on_device = false;
};
Result<VerifyReport> verify_conv_with(ConvCandidates candidates, const VerifyOptions& options);
/// The verifier of random convolutions on the paths of the CPU.
Result<VerifyReport> verify_conv(const VerifyOptions& options);
/// Whether a path has kernels of its own.
bool has_conv_kernel(CpuPath path);

/// On a path of the CPU; without one, on the default.
StaticConvRun static_conv_run(std::optional<CpuPath> path);
ConvRun conv_run(std::optional<CpuPath> path);
/// Appends the hashes of what section 12 determines: of static codes, and of floating-point images.
Status fingerprint_conv(const StaticConvRun& run_codes, const ConvRun& run, Fingerprints& lines);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_CONV_H_
