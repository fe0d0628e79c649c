// SPDX-License-Identifier: Apache-2.0
#include "isobit/cuda/verify.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/cuda/status.h"
#include "core/float_mode.h"
#include "core/random.h"
#include "gru/random_model.h"
#include "isobit/cuda/conv.h"
#include "isobit/cuda/fp16_table.h"
#include "isobit/cuda/gru.h"
#include "isobit/cuda/linear.h"
#include "isobit/cuda/table.h"
#include "isobit/parallel.h"
#include "linear/cuda/plan.h"
#include "verify/conv.h"
#include "verify/fp16.h"
#include "verify/gru.h"
#include "verify/linear.h"

namespace isobit::cuda {
namespace {

VerifyKernel device_kernel(const std::string& name) {
  VerifyKernel kernel;
  kernel.name = name;
  kernel.path = "cuda";
  return kernel;
}

// ---------------------------------------------------------------------------------------------------------------
// Random runs

// Products of codes. The first is some ten milliseconds of the reference, the others about a second of a vector path.
constexpr int64_t kReferenceProducts = 40'000'000;
constexpr int64_t kByteProducts = 6'000'000'000;
constexpr int64_t kLargeProducts = 2'000'000'000;
constexpr uint64_t kCpuOutputs = 1'000'000;  // of the CPU paths, before one of them is the measure
constexpr int64_t kCasesPerThread = 4;       // made at once

enum class Size { kSmall, kBytes, kLarge };

/// By number: most of the bytes belong to kBytes, most of the models to kSmall.
Size size_of_case(int64_t index) {
  if (index % 8 == 7) return Size::kBytes;
  return index % 32 == 13 ? Size::kLarge : Size::kSmall;
}

/// The layers that the fast kernels are made for, of bytes and of 16-bit states, and their neighbourhood.
void make_bytes(Random& random, RandomShape& s) {
  s.hidden = random.one_in(2) ? random.between(64, 1024) : 16 * random.between(4, 64);
  s.input = random.one_in(2) ? s.hidden : random.between(1, 1024);
  for (int32_t* bits : {&s.x_bits, &s.h_bits, &s.weight_bits, &s.gate_in_bits, &s.gate_out_bits}) *bits = 8;
  s.linear_bits = random.one_in(3) ? static_cast<int32_t>(random.between(9, 16)) : 8;
  if (random.one_in(3)) s.gate_in_bits = static_cast<int32_t>(random.between(9, 12));
  if (random.one_in(3)) s.h_bits = static_cast<int32_t>(random.between(9, 16));
  if (random.one_in(6)) s.x_bits = static_cast<int32_t>(random.between(9, 16));
  if (random.one_in(4)) s.weight_bits = static_cast<int32_t>(random.between(2, 7));
  s.kind = random.one_in(6) ? ScaleKind::kReal : ScaleKind::kPow2;
  if (!random.one_in(6)) s.rounding = Rounding::kNearestEven;
}

RandomShape shape_of(Random& random, Size size) {
  RandomShape s = random_shape(random);
  const int64_t most = random.one_in(3) ? 300 : 40;
  s.input = random.between(1, most);
  s.hidden = random.between(1, most);
  if (random.one_in(8))  // the fewest, and those of interpolated tables, which take long to fit
    s.gate_in_bits = static_cast<int32_t>(random.one_in(3) ? random.between(13, 16) : random.between(2, 3));
  if (size == Size::kBytes || (size == Size::kLarge && random.one_in(2))) make_bytes(random, s);
  if (size == Size::kLarge) {
    s.hidden = random.between(1025, 2100);
    s.input = random.between(1, 2100);
    s.layers = 1;
    s.directions = random.one_in(4) ? 2 : 1;
  }
  return s;
}

int64_t products_per_step(const RandomShape& s) {
  int64_t count = 0;
  for (int32_t l = 0; l < s.layers; ++l)
    count += s.directions * 3 * s.hidden * (s.hidden + (l == 0 ? s.input : s.hidden * s.directions));
  return count;
}

RandomRun run_of(Random& random, const GruModel& model, const RandomShape& shape, int64_t products) {
  const int64_t rows = std::max<int64_t>(products / products_per_step(shape), 1);
  RandomRun run;
  run.batch = std::min(random.between(1, random.one_in(3) ? 300 : 40), rows);
  run.steps = std::min(random.between(1, random.one_in(3) ? 200 : 20), std::max<int64_t>(rows / run.batch, 1));
  run.x = random_tensor(random, run.steps * run.batch * model.input_size(), model.input_grid());
  run.start = model.initial_state(run.batch);
  const bool random_state = random.one_in(2);
  for (int64_t l = 0; random_state && l < run.start.layer_count(); ++l) {
    const Grid& grid = model.parameters().layers[static_cast<size_t>(l)].grids[kH];
    const std::vector<std::byte> h = random_tensor(random, run.batch * model.hidden_size(), grid);
    std::copy(h.begin(), h.end(), run.start.layer(l).begin());
  }
  if (random.one_in(3))
    for (int64_t n = 0; n < run.batch; ++n) run.lengths.push_back(random.between(0, run.steps));
  if (shape.layers == 1 && random.one_in(4))
    for (int64_t i = 0; i < run.steps * run.batch * model.output_size(); ++i)
      run.mask.push_back(static_cast<uint8_t>(random.between(0, 1)));
  return run;
}

/// Pieces of a run, where a device may be given it in pieces.
void cut(Random& random, RandomRun& run) {
  for (int64_t left = run.steps; left > 0; left -= run.chunks.back())
    run.chunks.push_back(random.one_in(3) ? 1 : random.between(1, left));
}

/// Memory of operator new is aligned.
std::span<float> floats_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

Result<GruCase> make_case(uint64_t seed, int64_t index) {
  const DefaultFloatMode mode;
  // A generator of its own, so that a case does not depend on which thread makes those before it.
  Random mixed(seed);
  Random random(mixed.next() + static_cast<uint64_t>(index));
  const Size size = size_of_case(index);
  for (;;) {
    const RandomShape shape = shape_of(random, size);
    Result<GruModel> model = random_model(random, shape);
    if (!model.ok()) {
      if (model.status().code() == StatusCode::kOverflow) continue;  // refused by the proof, as it must
      return model.status();
    }
    GruCase c;
    c.model = *std::move(model);
    ISOBIT_ASSIGN_OR_RETURN(const CpuPath fastest, c.model.choose_path(std::nullopt));
    const int64_t products = size == Size::kBytes ? kByteProducts : kLargeProducts;
    const bool small = size == Size::kSmall || fastest == CpuPath::kReference;
    c.run = run_of(random, c.model, shape, small ? kReferenceProducts : products);
    const int64_t actual_products = c.run.steps * c.run.batch * products_per_step(shape);
    const CpuPath path = actual_products <= kReferenceProducts ? CpuPath::kReference : fastest;
    c.expected_by = path;
    c.batch_first = random.one_in(3);
    if (random.one_in(3)) {
      const Grid& grid = c.model.input_grid();
      c.x_floats = random_floats(random, grid, c.run.steps * c.run.batch * c.model.input_size());
      ISOBIT_RETURN_IF_ERROR(quantize(grid, c.x_floats, c.run.x.data(), "x"));
    }

    isobit::RunOptions options;
    options.path = path;
    options.lengths = c.run.lengths;
    options.zoneout_mask = c.run.mask;
    options.batch_first = c.batch_first;
    options.whole_sequence = true;
    c.expected.state = c.run.start;
    c.expected.y.resize(static_cast<size_t>(c.run.steps * c.run.batch * c.model.output_size()) *
                        size_in_bytes(c.model.output_grid().dtype()));
    Workspace workspace = c.model.workspace(c.run.batch, c.run.steps);
    ISOBIT_RETURN_IF_ERROR(
        c.model.forward_codes(c.run.x, c.expected.y, c.run.steps, c.expected.state, workspace, options));
    if (!c.x_floats.empty()) {
      const std::vector<std::byte> codes = c.expected.y;
      c.expected.y.resize(static_cast<size_t>(c.run.steps * c.run.batch * c.model.output_size()) * sizeof(float));
      dequantize(c.model.output_grid(), codes.data(), floats_of(c.expected.y));
    }
    const bool one_way = shape.directions == 1;
    if (one_way && !c.batch_first && c.run.lengths.empty() && random.one_in(2)) cut(random, c.run);
    if (c.run.chunks.empty()) c.run.chunks.push_back(c.run.steps);
    c.text = describe(shape, c.run, seed, index) + (c.batch_first ? ", batch first" : "") +
             (c.x_floats.empty() ? "" : ", floats") + (c.run.lengths.empty() ? "" : ", lengths") +
             (c.run.mask.empty() ? "" : ", mask") +
             (c.run.chunks.size() > 1 ? ", " + std::to_string(c.run.chunks.size()) + " chunks" : "");
    return c;
  }
}

/// In the run's chunks, from its codes, or from floats where there are any.
Result<RunOutput> execute_on(const DeviceGru& gru, Workspace& workspace, const RandomRun& run,
                             std::span<const float> x_floats, bool batch_first, std::string_view kernel) {
  const GruModel& model = gru.model();
  const auto row = [&](int64_t width, const Grid& grid) {
    return run.batch * width * static_cast<int64_t>(size_in_bytes(x_floats.empty() ? grid.dtype() : Dtype::kF32));
  };
  const int64_t x_row = row(model.input_size(), model.input_grid());
  const int64_t y_row = row(model.output_size(), model.output_grid());
  RunOutput out;
  out.state = run.start;
  out.y.assign(static_cast<size_t>(run.steps * y_row), std::byte{0xa5});
  RunOptions options;
  options.kernel = kernel;
  options.lengths = run.lengths;
  options.batch_first = batch_first;
  options.whole_sequence = true;
  const bool floats = !x_floats.empty();
  const std::span<const std::byte> x = floats ? std::as_bytes(x_floats) : std::span<const std::byte>(run.x);
  const Dtype x_dtype = floats ? Dtype::kF32 : model.input_grid().dtype();
  const Dtype y_dtype = floats ? Dtype::kF32 : model.output_grid().dtype();
  int64_t first = 0;
  for (const int64_t steps : run.chunks) {
    const int64_t masked = run.batch * model.output_size();
    if (!run.mask.empty())
      options.zoneout_mask =
          std::span(run.mask).subspan(static_cast<size_t>(first * masked), static_cast<size_t>(steps * masked));
    const auto part = [&](auto all, int64_t bytes) {  // of a step
      return all.subspan(static_cast<size_t>(first * bytes), static_cast<size_t>(steps * bytes));
    };
    ISOBIT_RETURN_IF_ERROR(gru.forward(part(x, x_row), x_dtype, part(std::span(out.y), y_row), y_dtype, steps,
                                       out.state, workspace, options));
    first += steps;
  }
  return out;
}

/// Whether the kernel runs every chunk.
bool can_run(const DeviceGru& gru, const RandomRun& run, std::string_view kernel) {
  return std::all_of(run.chunks.begin(), run.chunks.end(),
                     [&](int64_t steps) { return gru.choose_kernel(run.batch, steps, kernel).ok(); });
}

/// A model on the device and a workspace until others are asked for: the kernels of a case share them.
class Uploaded {
 public:
  explicit Uploaded(int device) : device_(device) {}
  Status load(const GruModel& model, int64_t batch, int64_t steps) {
    if (!gru_ || &gru_->model().parameters() != &model.parameters()) {
      gru_.reset();
      workspace_ = {};
      ISOBIT_ASSIGN_OR_RETURN(gru_, DeviceGru::create(model, device_));
    } else if (batch == batch_ && steps == steps_) {
      return {};
    }
    workspace_ = {};
    ISOBIT_ASSIGN_OR_RETURN(workspace_, gru_->workspace(batch, steps));
    batch_ = batch;
    steps_ = steps;
    return {};
  }
  [[nodiscard]] const DeviceGru& gru() const { return *gru_; }
  [[nodiscard]] Workspace& workspace() { return workspace_; }

 private:
  int device_;
  std::optional<DeviceGru> gru_;
  Workspace workspace_;
  int64_t batch_ = 0, steps_ = 0;
};

/// Every kernel of a device.
std::vector<Candidate<GruRun>> candidates(int device, const std::string& prefix) {
  std::vector<Candidate<GruRun>> out;
  const auto uploaded = std::make_shared<Uploaded>(device);
  for (const DeviceGruKernel& row : gru_kernels()) {
    const auto run = [uploaded, kernel = row.name](const GruCase& c) -> Result<std::optional<RunOutput>> {
      ISOBIT_RETURN_IF_ERROR(uploaded->load(c.model, c.run.batch, c.run.steps));
      if (!can_run(uploaded->gru(), c.run, kernel)) return std::optional<RunOutput>();
      ISOBIT_ASSIGN_OR_RETURN(
          RunOutput y, execute_on(uploaded->gru(), uploaded->workspace(), c.run, c.x_floats, c.batch_first, kernel));
      return std::optional(std::move(y));
    };
    out.push_back({device_kernel(prefix + std::string(row.name)), run});
  }
  return out;
}

/// No path of the CPU is a measure before it has been measured.
Status check_cpu(const std::string& operation, uint64_t seed) {
  VerifyOptions options;
  options.operation = operation;
  options.outputs = kCpuOutputs;
  options.seed = seed;
  ISOBIT_ASSIGN_OR_RETURN(const VerifyReport report, isobit::verify_kernels(options));
  for (const VerifyKernel& kernel : report.kernels)
    if (kernel.different > 0)
      return {StatusCode::kFailedPrecondition,
              "the CPU's " + kernel.name + " differs from the reference: " + kernel.first_difference};
  return {};
}

Result<VerifyReport> verify_gru(int device, const VerifyOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_cpu("gru", options.seed));
  std::vector<Candidate<GruRun>> kernels = candidates(device, "gru_cuda_");
  std::map<std::string, uint64_t> expected_by;
  ThreadPool pool(0);
  const int64_t wave = kCasesPerThread * pool.threads();
  std::vector<std::optional<Result<GruCase>>> cases(static_cast<size_t>(wave));
  uint64_t outputs = 0;
  const auto round = [&](int64_t index) -> Result<uint64_t> {
    if (index % wave == 0) {
      std::atomic<int64_t> next = 0;
      pool.for_ranges(pool.threads(), [&](int, int64_t, int64_t) {
        for (int64_t i = next++; i < wave; i = next++)
          cases[static_cast<size_t>(i)] = make_case(options.seed, index + i);
      });
    }
    ISOBIT_ASSIGN_OR_RETURN(const GruCase c, *std::move(cases[static_cast<size_t>(index % wave)]));
    ISOBIT_RETURN_IF_ERROR(compare_case(c, kernels, expected_by));
    return outputs += static_cast<uint64_t>(c.run.steps * c.run.batch * c.model.output_size());
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, options.progress, round));
  VerifyReport report;
  append_reports(kernels, report);
  report.expected_by.assign(expected_by.begin(), expected_by.end());
  return report;
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

struct Free {
  void operator()(void* p) const { cudaFree(p); }
};
using DeviceBytes = std::unique_ptr<std::byte, Free>;

Result<DeviceBytes> device_bytes(size_t count) {
  void* memory = nullptr;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMalloc(&memory, std::max<size_t>(count, 1)), std::to_string(count) + " bytes of device memory"));
  return DeviceBytes(static_cast<std::byte*>(memory));
}

Result<DeviceBytes> copy_of(std::span<const std::byte> bytes) {
  ISOBIT_ASSIGN_OR_RETURN(DeviceBytes owner, device_bytes(bytes.size()));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemcpy(owner.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                                     "copying to the device"));
  return owner;
}

Status copy_back(const DeviceBytes& from, std::span<std::byte> to) {
  return cuda_status(cudaMemcpy(to.data(), from.get(), to.size(), cudaMemcpyDeviceToHost), "copying to the host");
}

/// work(x, y) on copies on the current device, all on its default stream; y comes back.
template <typename Work>
Status through_device(std::span<const std::byte> x, std::span<std::byte> y, Work work) {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes x_device, copy_of(x));
  ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes y_device, copy_of(y));
  ISOBIT_RETURN_IF_ERROR(
      work(std::span<const std::byte>(x_device.get(), x.size()), std::span(y_device.get(), y.size())));
  return copy_back(y_device, y);
}

// ---------------------------------------------------------------------------------------------------------------
// Linear layers

/// Calls of so many rows on a copy of all the memory, so that what is written beside y comes back, too.
template <typename Layer>
Result<bool> run_calls(const Layer& layer, Dtype x_dtype, Dtype y_dtype, std::span<const int64_t> calls,
                       LinearBuffers& buffers) {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes copy, copy_of(buffers.bytes()));
  const auto scratch = static_cast<size_t>(layer.workspace_bytes(*std::max_element(calls.begin(), calls.end())));
  ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes workspace, device_bytes(scratch));
  const auto there = [&](std::span<std::byte> rows) {
    return std::span(copy.get() + (rows.data() - buffers.bytes().data()), rows.size());
  };
  int64_t first = 0;
  for (const int64_t rows : calls) {
    ISOBIT_RETURN_IF_ERROR(layer.forward(there(buffers.x(first, rows)), x_dtype, there(buffers.y(first, rows)), y_dtype,
                                         rows, std::span(workspace.get(), scratch),
                                         {.x_stride = buffers.x_stride, .y_stride = buffers.y_stride}));
    first += rows;
  }
  ISOBIT_RETURN_IF_ERROR(copy_back(copy, buffers.bytes()));
  return true;
}

/// Of layers whose rows together take this kernel, fewer may take another; empty: of every layer.
LinearRun linear_run(int device, std::string_view kernel = {}) {
  return [device, kernel](const LinearCase& c, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const DeviceLinear layer, DeviceLinear::create(c.matrix, c.options(), "random", device));
    if (!kernel.empty() && layer.kernel_name(std::accumulate(c.calls.begin(), c.calls.end(), int64_t{0})) != kernel)
      return false;
    return run_calls(layer, c.x_dtype, c.y_dtype, c.calls, buffers);
  };
}

StaticLinearRun static_linear_run(int device, std::string_view kernel = {}) {
  return [device, kernel](const StaticLinearParameters& p, int64_t m, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer host, StaticLinearLayer::create(p, "random"));
    ISOBIT_ASSIGN_OR_RETURN(const DeviceStaticLinear layer, DeviceStaticLinear::create(host, device));
    if (!kernel.empty() && layer.kernel_name(m) != kernel) return false;
    return run_calls(layer, p.x_dtype(), p.y_dtype(), {&m, 1}, buffers);
  };
}

Result<VerifyReport> verify_linear(int device, const VerifyOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_cpu("linear", options.seed));
  LinearCandidates all{.on_device = true};
  ISOBIT_ASSIGN_OR_RETURN(const LinearDevice limits, LinearDevice::current());
  for (const DeviceLinearKernel& kernel : linear_kernels()) {
    if (kernel.name == "many" && !limits.wgmma) continue;
    VerifyKernel report = device_kernel(std::string(kernel.operation) + "_cuda_" + std::string(kernel.name));
    if (kernel.operation == "linear_static") {
      all.statics.push_back({std::move(report), static_linear_run(device, kernel.name)});
    } else {
      (kernel.operation == "linear_int8" ? all.int8 : all.floats)
          .push_back({std::move(report), linear_run(device, kernel.name)});
    }
  }
  return verify_linear_with(std::move(all), options);
}

// ---------------------------------------------------------------------------------------------------------------
// Convolutions

/// Empty: the kernel that a run of this size takes.
StaticConvRun static_conv_run(int device, std::string_view kernel = {}) {
  return [device, kernel](const StaticConvCase& c, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer host, StaticConvLayer::create(c.parameters, "random"));
    ISOBIT_ASSIGN_OR_RETURN(const DeviceStaticConv layer, DeviceStaticConv::create(host, device));
    const Result<int64_t> scratch = layer.workspace_bytes(c.images, c.image, kernel);
    if (scratch.status().code() == StatusCode::kUnsupported) return false;
    ISOBIT_RETURN_IF_ERROR(scratch.status());
    const std::vector<std::byte> residual = c.residual_rows(buffers.y_stride);
    ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes copy, copy_of(buffers.bytes()));
    ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes residual_copy, copy_of(residual));
    ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes memory, device_bytes(static_cast<size_t>(*scratch)));
    // Two kernels take pixels that are aligned only.
    const bool aligned = kernel.starts_with("tile") || kernel == "depthwise";
    const auto code_bytes = static_cast<int64_t>(size_in_bytes(c.parameters.linear.x_dtype()));
    constexpr int64_t kPixelStep = 16;
    const int64_t x_stride = aligned ? (buffers.x_stride + kPixelStep - 1) / kPixelStep * kPixelStep : buffers.x_stride;
    std::vector<std::byte> pixels(aligned ? static_cast<size_t>(c.pixels() * x_stride * code_bytes) : 0);
    for (int64_t i = 0; aligned && i < c.pixels(); ++i)
      std::copy_n(buffers.x_row(i), c.parameters.shape.channels * code_bytes,
                  pixels.data() + i * x_stride * code_bytes);
    ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes pixels_copy, copy_of(pixels));
    const auto there = [&](std::span<std::byte> rows) {
      return std::span(copy.get() + (rows.data() - buffers.bytes().data()), rows.size());
    };
    const std::span<std::byte> workspace(memory.get(), static_cast<size_t>(*scratch));
    const std::span<std::byte> x =
        aligned ? std::span(pixels_copy.get(), pixels.size()) : there(buffers.x(0, c.pixels()));
    ISOBIT_RETURN_IF_ERROR(layer.forward(x, there(buffers.y(0, c.outputs())), c.images, c.image, workspace,
                                         {.kernel = kernel, .x_stride = x_stride, .y_stride = buffers.y_stride},
                                         std::span<const std::byte>(residual_copy.get(), residual.size())));
    ISOBIT_RETURN_IF_ERROR(layer.check_input(workspace, nullptr));
    ISOBIT_RETURN_IF_ERROR(copy_back(copy, buffers.bytes()));
    return true;
  };
}

/// Of layers that take this kernel; empty: of every layer.
ConvRun conv_run(int device, std::string_view kernel = {}) {
  return [device, kernel](const RandomConv& c, std::span<const int64_t> calls, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const DeviceConv layer,
                            DeviceConv::create(c.shape, c.weights, c.options({}), "random", device));
    if (!kernel.empty() && layer.kernel_name(c.x.dtype) != kernel) return false;
    const int64_t pixels = c.image.rows * c.image.columns, outputs = c.size.rows * c.size.columns;
    ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes copy, copy_of(buffers.bytes()));
    ISOBIT_ASSIGN_OR_RETURN(const int64_t scratch,
                            layer.workspace_bytes(*std::max_element(calls.begin(), calls.end()), c.image));
    ISOBIT_ASSIGN_OR_RETURN(const DeviceBytes memory, device_bytes(static_cast<size_t>(scratch)));
    const auto there = [&](std::span<std::byte> rows) {
      return std::span(copy.get() + (rows.data() - buffers.bytes().data()), rows.size());
    };
    int64_t first = 0;
    for (const int64_t images : calls) {
      ISOBIT_RETURN_IF_ERROR(layer.forward(there(buffers.x(first * pixels, images * pixels)), c.x.dtype,
                                           there(buffers.y(first * outputs, images * outputs)), c.y_dtype, images,
                                           c.image, std::span(memory.get(), static_cast<size_t>(scratch)),
                                           {.x_stride = buffers.x_stride, .y_stride = buffers.y_stride}));
      first += images;
    }
    ISOBIT_RETURN_IF_ERROR(copy_back(copy, buffers.bytes()));
    return true;
  };
}

Result<VerifyReport> verify_conv(int device, const VerifyOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_cpu("conv", options.seed));
  ConvCandidates all{.on_device = true};
  for (const DeviceLinearKernel& kernel : conv_kernels()) {
    VerifyKernel report = device_kernel(std::string(kernel.operation) + "_cuda_" + std::string(kernel.name));
    if (kernel.operation == "conv_static") {
      all.statics.push_back({std::move(report), static_conv_run(device, kernel.name)});
    } else {
      (kernel.operation == "conv_int8"    ? all.int8
       : kernel.operation == "conv_float" ? all.floats
                                          : all.per_image)
          .push_back({std::move(report), conv_run(device, kernel.name)});
    }
  }
  return verify_conv_with(std::move(all), options);
}

// ---------------------------------------------------------------------------------------------------------------
// Tables

Status run_function(const Fp16Function& function, std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y,
                    Dtype y_dtype) {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceFp16Function on_device, DeviceFp16Function::create(function.results()));
  return through_device(x, y, [&](auto from, auto to) { return on_device.forward(from, x_dtype, to, y_dtype); });
}

Status run_softmax(const Fp16Softmax& softmax, std::span<const std::byte> x, std::span<std::byte> y, int64_t columns) {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceFp16Softmax on_device, DeviceFp16Softmax::create(softmax));
  return through_device(
      x, y, [&](auto from, auto to) { return on_device.forward(from, Dtype::kF16, to, Dtype::kF16, columns); });
}

/// The table at every input code.
Result<std::vector<int32_t>> run_table(const ActivationTable& table) {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceTable on_device, DeviceTable::create(table));
  const Dtype from = table.input.dtype(), to = table.output.dtype();
  const int64_t count = table.input.max() - table.input.min() + 1;
  std::vector<std::byte> x(static_cast<size_t>(count) * size_in_bytes(from));
  std::vector<std::byte> y(static_cast<size_t>(count) * size_in_bytes(to));
  for (int64_t i = 0; i < count; ++i) store_code(x.data(), from, i, table.input.min() + i);
  ISOBIT_RETURN_IF_ERROR(through_device(x, y, [&](auto in, auto out) { return on_device.forward(in, from, out, to); }));
  std::vector<int32_t> codes;
  for (int64_t i = 0; i < count; ++i) codes.push_back(static_cast<int32_t>(load_code(y.data(), to, i)));
  return codes;
}

/// The list of the CPU, with the device in the place of its kernels. `kernel`: of fingerprint_all.
std::vector<VerifyOperation> operations(int device, std::string_view kernel) {
  std::vector<VerifyOperation> rows = cpu_operations(std::nullopt);
  for (VerifyOperation& row : rows) {
    row.verify = {};
    if (row.name == "activation_table") {
      row.fingerprint = [](Fingerprints& lines) { return fingerprint_tables(run_table, lines); };
    } else if (row.name == "fp16_table") {
      row.verify = [](const VerifyOptions& options) {
        return verify_fp16_with({{device_kernel("fp16_table_cuda_direct"), run_function}},
                                {{device_kernel("fp16_softmax_cuda"), run_softmax}}, options);
      };
      row.fingerprint = [](Fingerprints& lines) { return fingerprint_fp16(run_function, run_softmax, lines); };
    } else if (row.name == "gru") {
      row.verify = [device](const VerifyOptions& options) { return verify_gru(device, options); };
      const auto run = [device, kernel](const GruCase& c) -> Result<RunOutput> {
        Uploaded uploaded(device);
        ISOBIT_RETURN_IF_ERROR(uploaded.load(c.model, c.run.batch, c.run.steps));
        const std::string_view used = can_run(uploaded.gru(), c.run, kernel) ? kernel : std::string_view();
        return execute_on(uploaded.gru(), uploaded.workspace(), c.run, {}, false, used);
      };
      row.fingerprint = [run](Fingerprints& lines) { return fingerprint_gru(run, lines); };
    } else if (row.name == "linear") {
      row.verify = [device](const VerifyOptions& options) { return verify_linear(device, options); };
      row.fingerprint = [device](Fingerprints& lines) {
        return fingerprint_linear(linear_run(device), static_linear_run(device), lines);
      };
    } else if (row.name == "conv") {
      row.verify = [device](const VerifyOptions& options) { return verify_conv(device, options); };
      row.fingerprint = [device](Fingerprints& lines) {
        return fingerprint_conv(static_conv_run(device), conv_run(device), lines);
      };
    }
  }
  return rows;
}

Status use_device(int device) { return cuda_status(cudaSetDevice(device), "device " + std::to_string(device)); }

}  // namespace

std::vector<std::string_view> verify_operations() {
  static const std::vector<VerifyOperation> rows = operations(0, {});
  return names_of_verifiers(rows);
}

Result<VerifyReport> verify_kernels(int device, const VerifyOptions& options) {
  ISOBIT_RETURN_IF_ERROR(use_device(device));
  return verify_with(operations(device, {}), options, true);
}

Result<VerifyReport> verify_model(const GruModel& model, int device, const VerifyOptions& options) {
  ISOBIT_RETURN_IF_ERROR(use_device(device));
  return verify_model_with(model, candidates(device, "cuda_"), options, true);
}

Result<Fingerprints> fingerprint_all(int device, std::string_view kernel) {
  ISOBIT_RETURN_IF_ERROR(use_device(device));
  const std::span<const DeviceGruKernel> rows = gru_kernels();
  std::string names;
  for (const DeviceGruKernel& row : rows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  if (!kernel.empty() && std::none_of(rows.begin(), rows.end(), [&](const auto& row) { return row.name == kernel; }))
    return Status(StatusCode::kInvalidArgument, "kernel is '" + std::string(kernel) + "', must be one of " + names);
  return fingerprint_with(operations(device, kernel));
}

}  // namespace isobit::cuda
