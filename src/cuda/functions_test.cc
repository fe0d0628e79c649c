// SPDX-License-Identifier: Apache-2.0
// libisobit_cuda.so as a program finds it that does not link it: by dlopen, here beside the test.
#include "cuda/functions.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "conv/random_layer.h"
#include "core/codes.h"
#include "gru/random_model.h"
#include "isobit/arrays.h"
#include "isobit/conv.h"
#include "isobit/cuda/gru_qat.h"
#include "isobit/cuda/gru_training.h"
#include "isobit/fp16_function.h"
#include "isobit/fp16_table.h"
#include "isobit/gru.h"
#include "isobit/gru_training.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using isobit::testing::GuardedDeviceBuffer;
using isobit::testing::racecheck;
using isobit::testing::sanitized;

const isobit_cuda_functions* load() {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  void* const library = dlopen((folder / "libisobit_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    ADD_FAILURE() << dlerror();
    return nullptr;
  }
  auto* const table = reinterpret_cast<isobit_cuda_table_type*>(dlsym(library, ISOBIT_CUDA_TABLE_SYMBOL));
  EXPECT_NE(table, nullptr) << dlerror();
  return table == nullptr ? nullptr : table(ISOBIT_CUDA_FUNCTIONS_VERSION);
}

GruModel model_of(uint64_t seed, int32_t bits, int32_t layers, int32_t directions) {
  Random random(seed);
  RandomShape shape;
  shape.input = 9;
  shape.hidden = 20;
  shape.layers = layers;
  shape.directions = directions;
  shape.x_bits = shape.h_bits = shape.linear_bits = bits;
  Result<GruModel> model = random_model(random, shape);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

/// Of two layers in both directions, 5 inputs and 20 units, in 8 bits: `quantization` is what it was made with.
GruModel calibrated(GruQuantization& quantization) {
  constexpr int64_t kInputs = 5, kHidden = 20;
  Random random(4);
  const auto values = [&](int64_t count) {
    std::vector<float> made(static_cast<size_t>(count));
    for (float& value : made) value = static_cast<float>(random.between(-1000, 1000)) * 0x1p-11f;
    return made;
  };
  GruWeights weights;
  weights.directions = 2;
  for (const int64_t inputs : {kInputs, kInputs, 2 * kHidden, 2 * kHidden})
    weights.layers.push_back({inputs, kHidden, values(3 * kHidden * inputs), values(3 * kHidden * kHidden),
                              values(3 * kHidden), values(3 * kHidden)});
  EXPECT_TRUE(apply_bits("8,l1.W=6", quantization).ok());
  Result<GruCalibrator> calibrator = GruCalibrator::create(weights);
  EXPECT_TRUE(calibrator.ok() && calibrator->observe(values(50 * kInputs), 50, 1).ok());
  Result<GruModel> model = calibrator->finish(quantization);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

/// Those of W, R, bw and br of both layers.
std::vector<isobit_cuda_row_options> row_options(const GruQuantization& quantization) {
  std::vector<isobit_cuda_row_options> rows;
  for (const int64_t layer : {0, 1})
    for (const GruTensor tensor : {kW, kR, kBw, kBr}) {
      const GridOptions& of = quantization.layer(layer).tensors[tensor];
      rows.push_back({of.bits, of.is_signed ? 1 : 0, of.symmetric ? 1 : 0, of.steps.value_or(-1)});
    }
  return rows;
}

LowBitMatrix matrix_of(int64_t rows, int64_t columns, int64_t group = 32) {
  Random random(3);
  Array weights = Array::zeros(Dtype::kF32, {rows, columns});
  for (int64_t i = 0; i < weights.size(); ++i)
    weights.data<float>()[i] = static_cast<float>(random.between(-1000, 1000)) * 0x1p-10f;
  Result<LowBitMatrix> matrix = quantize_low_bit(weights, {.bits = 4, .group = group}, "W");
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return *std::move(matrix);
}

constexpr isobit_cuda_linear_options kInt8Options = {nullptr, 0, static_cast<int32_t>(LinearActivations::kInt8), -1.0f,
                                                     2.0f};

/// Of 3 x 3 kernels.
constexpr ConvShape kConvShape{.channels = 64,
                               .outputs = 7,
                               .rows = {.kernel = 3, .pad_before = 1},
                               .columns = {.kernel = 3, .stride = 2, .pad_before = 1, .pad_after = 1}};
constexpr isobit_cuda_conv_shape kCudaConvShape = {64, 7, 1, {3, 1, 1, 1, 0, 0}, {3, 2, 1, 1, 1, 0}, 0};

StaticLinearLayer static_layer_of(int64_t rows, int64_t columns) {
  Random random(3);
  Array weights = Array::zeros(Dtype::kF32, {rows, columns});
  for (int64_t i = 0; i < weights.size(); ++i)
    weights.data<float>()[i] = static_cast<float>(random.between(-1000, 1000)) * 0x1p-10f;
  std::vector<float> x(static_cast<size_t>(4 * columns));
  for (float& value : x) value = static_cast<float>(random.between(-1000, 1000)) * 0x1p-10f;
  Result<StaticLinearCalibrator> calibrator = StaticLinearCalibrator::create(weights, {}, {}, "layer");
  EXPECT_TRUE(calibrator.ok() && calibrator->observe(x, 4).ok());
  StaticLinearQuantization quantization;
  quantization.x.bits = 12;
  Result<StaticLinearLayer> layer = calibrator->finish(quantization);
  EXPECT_TRUE(layer.ok()) << layer.status().message();
  return *std::move(layer);
}

/// x of 12 bits in 16, and a residual.
StaticConvLayer conv_layer() {
  Random random(3);
  StaticConvParameters p;
  p.shape = {.channels = 5,
             .outputs = 7,
             .rows = {.kernel = 3, .pad_before = 1},
             .columns = {.kernel = 3, .stride = 2, .pad_before = 1, .pad_after = 1}};
  const Grid output{.bits = 8, .is_signed = false, .zero_point = 100};
  p.linear = random_conv_linear(random, p.shape.outputs, p.shape.depth(), {.bits = 12, .zero_point = -9}, output);
  p.residual = StaticResidual{{.bits = 8, .zero_point = 3}, {1 << 30, 29}};
  Result<StaticConvLayer> layer = StaticConvLayer::create(p, "conv");
  EXPECT_TRUE(layer.ok()) << layer.status().message();
  return *std::move(layer);
}

std::vector<std::byte> random_codes(Random& random, int64_t count, const Grid& grid) {
  std::vector<std::byte> codes(static_cast<size_t>(count) * size_in_bytes(grid.dtype()));
  for (int64_t i = 0; i < count; ++i) store_code(codes.data(), grid.dtype(), i, random.between(grid.min(), grid.max()));
  return codes;
}

// ---- Without a device

TEST(CudaFunctions, VersionAndRelease) {
  const isobit_cuda_functions* const f = load();
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->version, ISOBIT_CUDA_FUNCTIONS_VERSION);
  EXPECT_STREQ(f->release, ISOBIT_VERSION);
  const auto* const all = reinterpret_cast<void* const*>(f);
  for (size_t i = 2; i < sizeof(*f) / sizeof(void*); ++i) EXPECT_NE(all[i], nullptr) << i;
}

TEST(CudaFunctions, ErrorsAreCodesAndMessagesOfTheThread) {
  const isobit_cuda_functions* const f = load();
  ASSERT_NE(f, nullptr);
  const std::string no_model = "a text that is no model";
  isobit_cuda_gru* gru = nullptr;
  EXPECT_EQ(f->gru_create(no_model.data(), static_cast<int64_t>(no_model.size()), 0, &gru),
            static_cast<int32_t>(StatusCode::kInvalidFile));
  EXPECT_EQ(gru, nullptr);
  const std::string told = f->last_error();
  EXPECT_NE(told.find("the model"), std::string::npos) << told;

  const std::vector<std::byte> model = *model_of(1, 8, 1, 1).saved_bytes();
  std::thread([&] {
    EXPECT_STREQ(f->last_error(), "");
    if (sanitized()) return;  // memcheck tells the calls that fail
    isobit_cuda_gru* none = nullptr;
    const int32_t code = f->gru_create(model.data(), static_cast<int64_t>(model.size()), 1 << 20, &none);
    EXPECT_NE(code, 0);
    EXPECT_EQ(none, nullptr);
    const std::string text = f->last_error();
    EXPECT_EQ(text.find("device 1048576: "), 0u) << text;
    isobit_cuda_gru_training* training = nullptr;
    const isobit_cuda_gru_training_sizes sizes = {1, 1, 1, 1, 1, 1};
    EXPECT_EQ(f->gru_training_create(&sizes, "training", 1 << 20, &training), code);
    EXPECT_EQ(training, nullptr);
    GruQuantization quantization;
    const std::vector<std::byte> trained = *calibrated(quantization).saved_bytes();
    const std::vector<isobit_cuda_row_options> rows = row_options(quantization);
    isobit_cuda_gru_qat* qat = nullptr;
    EXPECT_EQ(f->gru_qat_create(trained.data(), std::ssize(trained), rows.data(), 8, 0, "training", 1 << 20, &qat),
              code);
    EXPECT_EQ(qat, nullptr);
    isobit_cuda_function* function = nullptr;
    const std::vector<uint16_t> results(65536);
    EXPECT_EQ(f->function_create(results.data(), 65536, 1 << 20, &function), code);
    EXPECT_EQ(function, nullptr);
  }).join();
  EXPECT_EQ(f->last_error(), told);  // another thread's errors are its own
  f->gru_destroy(nullptr);
  f->gru_training_destroy(nullptr);
  f->gru_qat_destroy(nullptr);
  f->linear_destroy(nullptr);
  f->conv_destroy(nullptr);
  f->function_destroy(nullptr);
}

TEST(CudaFunctions, TrainingForIntegersHasOptionsOfRows) {
  const isobit_cuda_functions* const f = load();
  ASSERT_NE(f, nullptr);
  GruQuantization quantization;
  const std::vector<std::byte> model = *calibrated(quantization).saved_bytes();
  const std::vector<isobit_cuda_row_options> rows = row_options(quantization);
  isobit_cuda_gru_qat* qat = nullptr;
  EXPECT_EQ(f->gru_qat_create(model.data(), std::ssize(model), rows.data(), 4, 0, "training", 0, &qat),
            static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_STREQ(f->last_error(), "rows has 4 elements, must have 8: those of W, R, bw and br of each layer");
  EXPECT_EQ(f->gru_qat_create(model.data(), 40, rows.data(), 8, 0, "training", 0, &qat),
            static_cast<int32_t>(StatusCode::kInvalidFile));
  EXPECT_EQ(std::string(f->last_error()).find("the model: "), 0u) << f->last_error();
  EXPECT_EQ(qat, nullptr);
}

TEST(CudaFunctions, LinearLayersAreOfOneMatrix) {
  const isobit_cuda_functions* const f = load();
  ASSERT_NE(f, nullptr);
  const auto refused = [&](const LowBitFile& file, int32_t device) {
    const std::vector<std::byte> weights = *saved_low_bit(file);
    isobit_cuda_linear* linear = nullptr;
    EXPECT_NE(f->linear_create(weights.data(), static_cast<int64_t>(weights.size()), &kInt8Options, device, &linear),
              0);
    EXPECT_EQ(linear, nullptr);
    return std::string(f->last_error());
  };
  const LowBitMatrix matrix = matrix_of(8, 64);
  EXPECT_EQ(refused({.matrices = {{"a", matrix}, {"b", matrix}}}, 0), "the weights are 2 matrices, must be 1");
  if (sanitized()) return;  // memcheck tells the calls that fail
  const std::string text = refused({.matrices = {{"a", matrix}}}, 1 << 20);
  EXPECT_EQ(text.find("device 1048576: "), 0u) << text;
}

TEST(CudaFunctions, ConvolutionsAreOfOneMatrix) {
  const isobit_cuda_functions* const f = load();
  ASSERT_NE(f, nullptr);
  const auto refused = [&](const LowBitFile& file, int32_t device) {
    const std::vector<std::byte> weights = *saved_low_bit(file);
    isobit_cuda_conv* conv = nullptr;
    EXPECT_NE(f->conv_create(weights.data(), static_cast<int64_t>(weights.size()), &kCudaConvShape, &kInt8Options,
                             "conv", device, &conv),
              0);
    EXPECT_EQ(conv, nullptr);
    return std::string(f->last_error());
  };
  const LowBitMatrix matrix = matrix_of(7 * 9, 64);
  EXPECT_EQ(refused({.matrices = {{"a", matrix}, {"b", matrix}}}, 0), "the weights are 2 matrices, must be 1");
  if (sanitized()) return;  // memcheck tells the calls that fail
  const std::string text = refused({.matrices = {{"a", matrix}}}, 1 << 20);
  EXPECT_EQ(text.find("device 1048576: "), 0u) << text;
}

TEST(CudaFunctions, ConvolutionsOfCodesAreOfASavedLayer) {
  const isobit_cuda_functions* const f = load();
  ASSERT_NE(f, nullptr);
  const auto refused = [&](const std::vector<std::byte>& layer, int32_t device) {
    isobit_cuda_conv* conv = nullptr;
    EXPECT_NE(f->conv_create_static(layer.data(), static_cast<int64_t>(layer.size()), device, &conv), 0);
    EXPECT_EQ(conv, nullptr);
    return std::string(f->last_error());
  };
  const std::vector<std::byte> saved = *conv_layer().saved_bytes();
  std::string text = refused(std::vector<std::byte>(saved.begin(), saved.begin() + 40), 0);
  EXPECT_EQ(text.find("the layer: "), 0u) << text;
  text = refused(*static_layer_of(4, 8).saved_bytes(), 0);
  EXPECT_EQ(text.find("the layer: "), 0u) << text;
  if (sanitized()) return;  // memcheck tells the calls that fail
  text = refused(saved, 1 << 20);
  EXPECT_EQ(text.find("device 1048576: "), 0u) << text;
}

TEST(CudaFunctions, AModelComesBackFromItsBytes) {
  const GruModel model = model_of(2, 16, 2, 2);
  const std::vector<std::byte> bytes = *model.saved_bytes();
  const std::string path = ::testing::TempDir() + "cuda_functions_test.safetensors";
  ASSERT_TRUE(model.save(path).ok());
  EXPECT_EQ(*read_file(path), bytes);
  std::filesystem::remove(path);
  const Result<GruModel> again = GruModel::load(*ArrayReader::view(bytes.data(), bytes.size(), "bytes"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again->saved_bytes(), bytes);
}

// ---- On a device

class CudaFunctionRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    ISOBIT_NEEDS_CUDA_DEVICE();
    f_ = load();
    ASSERT_NE(f_, nullptr);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    }
  }
  void expect_ok(int32_t code) { EXPECT_EQ(code, 0) << f_->last_error(); }

  const isobit_cuda_functions* f_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaFunctionRuns, GrusGiveTheBytesOfTheHost) {
  if (racecheck()) return;
  for (const int32_t bits : {8, 16})
    for (const int32_t directions : {1, 2})
      for (const bool floats : {false, true}) {
        SCOPED_TRACE(std::to_string(bits) + " bits, directions " + std::to_string(directions));
        const GruModel model = model_of(static_cast<uint64_t>(bits), bits, 2, directions);
        const std::vector<std::byte> saved = *model.saved_bytes();
        isobit_cuda_gru* gru = nullptr;
        expect_ok(f_->gru_create(saved.data(), static_cast<int64_t>(saved.size()), 0, &gru));
        ASSERT_NE(gru, nullptr);
        constexpr int64_t kSteps = 12, kBatch = 3;
        Random random(7);
        const std::vector<float> x = random_floats(random, model.input_grid(), kSteps * kBatch * model.input_size());
        const std::vector<std::byte> codes =
            random_tensor(random, kSteps * kBatch * model.input_size(), model.input_grid());
        const auto* const x_begin = floats ? reinterpret_cast<const std::byte*>(x.data()) : codes.data();
        const std::vector<std::byte> in(x_begin, x_begin + (floats ? x.size() * sizeof(float) : codes.size()));
        const Dtype x_dtype = floats ? Dtype::kF32 : model.input_grid().dtype();
        const Dtype y_dtype = floats ? Dtype::kF32 : model.output_grid().dtype();
        const std::vector<int64_t> lengths = {kSteps, 5, 0};
        const auto h_count = 2 * directions * kBatch * model.hidden_size();
        std::vector<float> h;
        for (int64_t l = 0; l < 2 * directions; ++l) {
          const std::vector<float> one = random_floats(
              random, model.parameters().layers[static_cast<size_t>(l)].grids[kH], kBatch * model.hidden_size());
          h.insert(h.end(), one.begin(), one.end());
        }
        GruState state = *model.state_from_float(h, kBatch);
        std::vector<std::byte> y(static_cast<size_t>(kSteps * kBatch * model.output_size()) * size_in_bytes(y_dtype));
        Workspace workspace = model.workspace(kBatch, kSteps);
        RunOptions options;
        options.lengths = lengths;
        options.batch_first = true;
        options.whole_sequence = true;
        ASSERT_TRUE(model.forward(in, x_dtype, y, y_dtype, kSteps, state, workspace, options).ok());
        std::vector<float> last(static_cast<size_t>(h_count));
        model.state_to_float(state, last);

        GuardedDeviceBuffer x_d(static_cast<int64_t>(in.size())), y_d(static_cast<int64_t>(y.size()));
        GuardedDeviceBuffer lengths_d(kBatch * 8), h_d(h_count * 4), state_d(f_->gru_state_bytes(gru, kBatch));
        GuardedDeviceBuffer workspace_d(f_->gru_workspace_bytes(gru, kBatch, kSteps));
        x_d.write(in);
        lengths_d.write(lengths);
        h_d.write(h);
        const auto size = [](const GuardedDeviceBuffer& buffer) { return static_cast<int64_t>(buffer.bytes().size()); };
        expect_ok(f_->gru_state_from_float(gru, static_cast<const float*>(h_d.data()), h_count, state_d.data(),
                                           size(state_d), kBatch, stream_));
        isobit_cuda_gru_run run{};
        run.x = x_d.data();
        run.x_bytes = size(x_d);
        run.y = y_d.data();
        run.y_bytes = size(y_d);
        run.state = state_d.data();
        run.state_bytes = size(state_d);
        run.workspace = workspace_d.data();
        run.workspace_bytes = size(workspace_d);
        run.lengths = static_cast<const int64_t*>(lengths_d.data());
        run.lengths_count = kBatch;
        run.steps = kSteps;
        run.batch = kBatch;
        run.stream = stream_;
        run.x_dtype = static_cast<int32_t>(x_dtype);
        run.y_dtype = static_cast<int32_t>(y_dtype);
        run.batch_first = 1;
        run.whole_sequence = 1;
        expect_ok(f_->gru_run(gru, &run));
        expect_ok(f_->gru_state_to_float(gru, state_d.data(), size(state_d), static_cast<float*>(h_d.data()), h_count,
                                         kBatch, stream_));
        if (floats) expect_ok(f_->gru_check_input(gru, workspace_d.data(), size(workspace_d), stream_));
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        EXPECT_EQ(y_d.read<std::byte>(), y);
        EXPECT_EQ(h_d.read<float>(), last);

        expect_ok(f_->gru_initial_state(gru, state_d.data(), size(state_d), kBatch, stream_));
        expect_ok(f_->gru_state_to_float(gru, state_d.data(), size(state_d), static_cast<float*>(h_d.data()), h_count,
                                         kBatch, stream_));
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        EXPECT_EQ(h_d.read<float>(), std::vector<float>(static_cast<size_t>(h_count)));

        run.workspace_bytes = 256;
        EXPECT_EQ(f_->gru_run(gru, &run), static_cast<int32_t>(StatusCode::kInvalidArgument));
        EXPECT_NE(std::string(f_->last_error()).find("workspace has 256 bytes"), std::string::npos) << f_->last_error();
        EXPECT_EQ(f_->gru_state_to_float(gru, state_d.data(), size(state_d), static_cast<float*>(h_d.data()),
                                         h_count - 1, kBatch, stream_),
                  static_cast<int32_t>(StatusCode::kInvalidArgument));
        f_->gru_destroy(gru);
      }
}

TEST_F(CudaFunctionRuns, LinearLayersGiveTheBytesOfTheHost) {
  constexpr int64_t kRows = 21, kN = 70, kK = 160, kXStride = 165, kYStride = 73;
  const LowBitMatrix matrix = matrix_of(kN, kK);
  std::vector<float> bias(kN), x(kRows * kXStride);
  Random random(5);
  for (float& b : bias) b = static_cast<float>(random.between(-100, 100)) * 0x1p-7f;
  for (float& value : x) value = static_cast<float>(random.between(-1000, 1000)) * 0x1p-9f;
  const LinearOptions options{
      .activations = LinearActivations::kInt8, .bias = bias, .clamp = {kInt8Options.lo, kInt8Options.hi}};
  const LinearLayer host = *LinearLayer::create(matrix, options, "layer");
  std::vector<std::byte> y(((kRows - 1) * kYStride + kN) * 2, std::byte{GuardedDeviceBuffer::kCanary});
  Workspace on_host = host.workspace(kRows);
  ASSERT_TRUE(host.forward(std::as_bytes(std::span(x)), Dtype::kF32, y, Dtype::kF16, kRows, on_host,
                           {.x_stride = kXStride, .y_stride = kYStride})
                  .ok());

  isobit_cuda_linear_options with_bias = kInt8Options;
  with_bias.bias = bias.data();
  with_bias.bias_count = kN;
  const std::vector<std::byte> weights = *saved_low_bit({.matrices = {{"W", matrix}}});
  isobit_cuda_linear* linear = nullptr;
  expect_ok(f_->linear_create(weights.data(), static_cast<int64_t>(weights.size()), &with_bias, 0, &linear));
  ASSERT_NE(linear, nullptr);
  GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size() * sizeof(float))), y_d(static_cast<int64_t>(y.size())),
      workspace(f_->linear_workspace_bytes(linear, kRows));
  const auto size = [](const GuardedDeviceBuffer& buffer) { return static_cast<int64_t>(buffer.bytes().size()); };
  isobit_cuda_linear_run run{};
  run.x = x_d.data();
  run.x_bytes = size(x_d);
  run.y = y_d.data();
  run.y_bytes = size(y_d);
  run.workspace = workspace.data();
  run.workspace_bytes = size(workspace);
  run.rows = kRows;
  run.x_stride = kXStride;
  run.y_stride = kYStride;
  run.stream = stream_;
  run.x_dtype = static_cast<int32_t>(Dtype::kF32);
  run.y_dtype = static_cast<int32_t>(Dtype::kF16);
  x_d.write(x);
  expect_ok(f_->linear_run(linear, &run));
  expect_ok(f_->linear_check_input(linear, workspace.data(), size(workspace), kRows, stream_));
  EXPECT_EQ(y_d.read<std::byte>(), y);

  x[9 * kXStride + 3] = std::numeric_limits<float>::infinity();
  x_d.write(x);
  expect_ok(f_->linear_run(linear, &run));
  EXPECT_EQ(f_->linear_check_input(linear, workspace.data(), size(workspace), kRows, stream_),
            static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_EQ(std::string(f_->last_error()).find("x[9] has a NaN"), 0u) << f_->last_error();
  run.workspace_bytes = 256;
  EXPECT_EQ(f_->linear_run(linear, &run), static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_EQ(std::string(f_->last_error()).find("workspace has 256 bytes"), 0u) << f_->last_error();
  f_->linear_destroy(linear);
}

TEST_F(CudaFunctionRuns, LayersOfStaticCodesGiveTheBytesOfTheHost) {
  constexpr int64_t kRows = 9, kN = 70, kK = 160;
  const StaticLinearLayer host = static_layer_of(kN, kK);
  const std::vector<std::byte> saved = *host.saved_bytes();
  isobit_cuda_linear* linear = nullptr;
  expect_ok(f_->linear_create_static(saved.data(), static_cast<int64_t>(saved.size()), 0, &linear));
  ASSERT_NE(linear, nullptr);
  Random random(5);
  std::vector<std::byte> x = random_tensor(random, kRows * kK, host.input_grid());
  std::vector<std::byte> y(kRows * kN * size_in_bytes(host.parameters().y_dtype()));
  Workspace on_host = host.workspace(kRows);
  ASSERT_TRUE(host.forward_codes(x, y, kRows, on_host).ok());
  GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size())), y_d(static_cast<int64_t>(y.size())),
      workspace(f_->linear_workspace_bytes(linear, kRows));
  const auto size = [](const GuardedDeviceBuffer& buffer) { return static_cast<int64_t>(buffer.bytes().size()); };
  isobit_cuda_linear_run run{};
  run.x = x_d.data();
  run.x_bytes = size(x_d);
  run.y = y_d.data();
  run.y_bytes = size(y_d);
  run.workspace = workspace.data();
  run.workspace_bytes = size(workspace);
  run.rows = kRows;
  run.stream = stream_;
  run.x_dtype = static_cast<int32_t>(host.parameters().x_dtype());
  run.y_dtype = static_cast<int32_t>(host.parameters().y_dtype());
  x_d.write(x);
  expect_ok(f_->linear_run(linear, &run));
  expect_ok(f_->linear_check_input(linear, workspace.data(), size(workspace), kRows, stream_));
  EXPECT_EQ(y_d.read<std::byte>(), y);
  x[3 * kK * 2 + 1] = std::byte{0x7f};  // of a code of 12 bits
  x_d.write(x);
  expect_ok(f_->linear_run(linear, &run));
  const int32_t code = f_->linear_check_input(linear, workspace.data(), size(workspace), kRows, stream_);
  EXPECT_EQ(code, static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_EQ(f_->last_error(), host.forward_codes(x, y, kRows, on_host).message());
  f_->linear_destroy(linear);
}

TEST_F(CudaFunctionRuns, ConvolutionsOfCodesGiveTheBytesOfTheHost) {
  constexpr int64_t kImages = 2, kXStride = 7, kYStride = 8;
  constexpr ImageSize kImage{6, 9}, kSize{5, 5};
  const StaticConvLayer host = conv_layer();
  const StaticConvParameters& p = host.parameters();
  const std::vector<std::byte> saved = *host.saved_bytes();
  isobit_cuda_conv* conv = nullptr;
  expect_ok(f_->conv_create_static(saved.data(), static_cast<int64_t>(saved.size()), 0, &conv));
  ASSERT_NE(conv, nullptr);
  Random random(5);
  std::vector<std::byte> x = random_codes(random, kImages * kImage.rows * kImage.columns * kXStride, p.linear.input);
  constexpr int64_t kOutputs = kImages * kSize.rows * kSize.columns * kYStride;
  const std::vector<std::byte> residual = random_codes(random, kOutputs, p.residual->grid);
  std::vector<std::byte> y(kOutputs, std::byte{GuardedDeviceBuffer::kCanary});
  Workspace on_host = *host.workspace(kImages, kImage);
  const auto run_on_host = [&] {
    return host.forward(x, y, kImages, kImage, on_host, {.x_stride = kXStride, .y_stride = kYStride}, residual);
  };
  ASSERT_TRUE(run_on_host().ok());

  int64_t bytes = 0;
  expect_ok(f_->conv_workspace_bytes(conv, kImages, kImage.rows, kImage.columns, &bytes));
  GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size())), y_d(kOutputs), residual_d(kOutputs), workspace(bytes);
  isobit_cuda_conv_run run{};
  run.x = x_d.data();
  run.x_bytes = static_cast<int64_t>(x.size());
  run.y = y_d.data();
  run.y_bytes = kOutputs;
  run.residual = residual_d.data();
  run.residual_bytes = kOutputs;
  run.workspace = workspace.data();
  run.workspace_bytes = bytes;
  run.images = kImages;
  run.rows = kImage.rows;
  run.columns = kImage.columns;
  run.x_stride = kXStride;
  run.y_stride = kYStride;
  run.stream = stream_;
  x_d.write(x);
  residual_d.write(residual);
  expect_ok(f_->conv_run(conv, &run));
  expect_ok(f_->conv_check_input(conv, workspace.data(), bytes, kImages, kImage.rows, kImage.columns, stream_));
  EXPECT_EQ(y_d.read<std::byte>(), y);

  store_code(x.data(), p.linear.x_dtype(), (3 * kImage.columns + 4) * kXStride + 2, 2048);
  x_d.write(x);
  expect_ok(f_->conv_run(conv, &run));
  EXPECT_EQ(f_->conv_check_input(conv, workspace.data(), bytes, kImages, kImage.rows, kImage.columns, stream_),
            static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_EQ(f_->last_error(), run_on_host().message());
  run.workspace_bytes = 0;
  EXPECT_EQ(f_->conv_run(conv, &run), static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_EQ(std::string(f_->last_error()).find("workspace has 0 bytes"), 0u) << f_->last_error();
  run.residual_bytes = 0;
  EXPECT_EQ(f_->conv_run(conv, &run), static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_EQ(std::string(f_->last_error()).find("conv: residual has 0 bytes"), 0u) << f_->last_error();
  EXPECT_EQ(f_->conv_workspace_bytes(conv, -1, kImage.rows, kImage.columns, &bytes),
            static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_STREQ(f_->last_error(), "conv: images is -1, must be at least 0");
  f_->conv_destroy(conv);
}

TEST_F(CudaFunctionRuns, ConvolutionsGiveTheBytesOfTheHost) {
  constexpr int64_t kImages = 2, kXStride = 66, kYStride = 8;
  constexpr ImageSize kImage{6, 9}, kSize{5, 5};
  Random random(5);
  std::vector<float> bias(7);
  for (float& b : bias) b = static_cast<float>(random.between(-100, 100)) * 0x1p-7f;
  for (const ConvActivations activations : {ConvActivations::kInt8, ConvActivations::kInt8PerImage}) {
    SCOPED_TRACE(std::string(to_string(activations)));
    const LowBitMatrix matrix =
        activations == ConvActivations::kInt8 ? matrix_of(7 * 9, 64) : matrix_of(7, 9 * 64, 9 * 64);
    std::vector<float> x(kImages * kImage.rows * kImage.columns * kXStride);
    for (float& value : x) value = static_cast<float>(random.between(-1000, 1000)) * 0x1p-9f;
    const ConvOptions options{.activations = activations, .bias = bias, .clamp = {-1.0f, 2.0f}};
    const ConvLayer host = *ConvLayer::create(kConvShape, matrix, options, "conv");
    std::vector<std::byte> y(kImages * kSize.rows * kSize.columns * kYStride * 2,
                             std::byte{GuardedDeviceBuffer::kCanary});
    Workspace on_host = *host.workspace(kImages, kImage);
    const auto run_on_host = [&] {
      return host.forward(std::as_bytes(std::span(x)), Dtype::kF32, y, Dtype::kF16, kImages, kImage, on_host,
                          {.x_stride = kXStride, .y_stride = kYStride});
    };
    ASSERT_TRUE(run_on_host().ok());

    const std::vector<std::byte> weights = *saved_low_bit({.matrices = {{"W", matrix}}});
    const isobit_cuda_linear_options how = {bias.data(), 7, static_cast<int32_t>(activations), -1.0f, 2.0f};
    isobit_cuda_conv* conv = nullptr;
    expect_ok(
        f_->conv_create(weights.data(), static_cast<int64_t>(weights.size()), &kCudaConvShape, &how, "conv", 0, &conv));
    ASSERT_NE(conv, nullptr);
    int64_t bytes = 0;
    expect_ok(f_->conv_workspace_bytes(conv, kImages, kImage.rows, kImage.columns, &bytes));
    GuardedDeviceBuffer x_d(static_cast<int64_t>(x.size() * sizeof(float))), y_d(static_cast<int64_t>(y.size())),
        workspace(bytes);
    isobit_cuda_conv_run run{};
    run.x = x_d.data();
    run.x_bytes = static_cast<int64_t>(x.size() * sizeof(float));
    run.x_dtype = static_cast<int32_t>(Dtype::kF32);
    run.y = y_d.data();
    run.y_bytes = static_cast<int64_t>(y.size());
    run.y_dtype = static_cast<int32_t>(Dtype::kF16);
    run.workspace = workspace.data();
    run.workspace_bytes = bytes;
    run.images = kImages;
    run.rows = kImage.rows;
    run.columns = kImage.columns;
    run.x_stride = kXStride;
    run.y_stride = kYStride;
    run.stream = stream_;
    const auto check = [&] {
      return f_->conv_check_input(conv, workspace.data(), bytes, kImages, kImage.rows, kImage.columns, stream_);
    };
    x_d.write(x);
    expect_ok(f_->conv_run(conv, &run));
    expect_ok(check());
    EXPECT_EQ(y_d.read<std::byte>(), y);

    x[(kImage.rows * kImage.columns + 3 * kImage.columns + 4) * kXStride + 2] = std::numeric_limits<float>::infinity();
    x_d.write(x);
    expect_ok(f_->conv_run(conv, &run));
    constexpr auto kRefused = static_cast<int32_t>(StatusCode::kInvalidArgument);
    EXPECT_EQ(check(), kRefused);
    EXPECT_EQ(f_->last_error(), run_on_host().message());
    run.workspace_bytes = 0;
    EXPECT_EQ(f_->conv_run(conv, &run), kRefused);
    EXPECT_EQ(std::string(f_->last_error()).find("workspace has 0 bytes"), 0u) << f_->last_error();
    run.residual = y_d.data();
    run.residual_bytes = run.y_bytes;
    EXPECT_EQ(f_->conv_run(conv, &run), kRefused);
    EXPECT_EQ(std::string(f_->last_error()).find("conv: residual has 800 bytes, must have 0"), 0u) << f_->last_error();
    EXPECT_EQ(f_->conv_workspace_bytes(conv, -1, kImage.rows, kImage.columns, &bytes), kRefused);
    EXPECT_STREQ(f_->last_error(), "conv: images is -1, must be at least 0");
    f_->conv_destroy(conv);
  }
}

/// Arrays on the device for both kinds of training, of two layers in both directions.
struct TrainingArrays {
  static constexpr int64_t T = 6, N = 3, C = 5, H = 20, kLayers = 2, kDirections = 2;
  static constexpr int64_t kStates = kLayers * kDirections * N * H, kRows = T * N, kOutputs = kDirections * H;

  explicit TrainingArrays(cudaStream_t of_stream)
      : stream(of_stream), lengths(N * 8), mask(kLayers * kRows * kOutputs) {
    for (int64_t i = 0; i < kLayers * kDirections; ++i)
      for (const int64_t count : {3 * H * (i < kDirections ? C : kOutputs), 3 * H * H, 3 * H, 3 * H}) {
        weights.push_back(floats(count));
        gradients.push_back(floats(count));
      }
    lengths.write(std::vector<int64_t>{T, 0, 4});
    std::vector<uint8_t> taken(static_cast<size_t>(kLayers * kRows * kOutputs));
    for (uint8_t& one : taken) one = random.one_in(4) ? 0 : 1;
    mask.write(taken);
    run.weights = weights.data();
    run.gradients = gradients.data();
    run.weights_count = run.gradients_count = std::ssize(weights);
    run.x = floats(kRows * C);
    run.first = floats(kStates);
    run.y = floats(kRows * kOutputs);
    run.last = floats(kStates);
    run.dy = floats(kRows * kOutputs);
    run.last_gradient = floats(kStates);
    run.dx = floats(kRows * C);
    run.first_gradient = floats(kStates);
    run.lengths = static_cast<const int64_t*>(lengths.data());
    run.lengths_count = N;
    run.zoneout_mask = static_cast<const uint8_t*>(mask.data());
    run.zoneout_mask_count = std::ssize(taken);
    run.stream = stream;
    options = {.stream = stream, .lengths = {run.lengths, N}, .zoneout_mask = {run.zoneout_mask, taken.size()}};
    for (size_t i = 0; i < weights.size(); i += 4) {
      parts.push_back({span(weights[i]), span(weights[i + 1]), span(weights[i + 2]), span(weights[i + 3])});
      into.push_back({span(gradients[i]), span(gradients[i + 1]), span(gradients[i + 2]), span(gradients[i + 3])});
    }
  }

  isobit_cuda_floats floats(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random.between(-1000, 1000)) * 0x1p-11f;
    buffers.push_back(std::make_unique<GuardedDeviceBuffer>(count * static_cast<int64_t>(sizeof(float))));
    buffers.back()->write(values);
    return {static_cast<float*>(buffers.back()->data()), count};
  }
  static std::span<float> span(const isobit_cuda_floats& of) { return {of.data, static_cast<size_t>(of.count)}; }

  std::vector<std::vector<float>> results() const {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    std::vector<std::vector<float>> all;
    for (const auto& buffer : buffers) all.push_back(buffer->read<float>());
    return all;
  }
  void clear_results() const {
    std::vector<isobit_cuda_floats> written = gradients;
    for (const isobit_cuda_floats& of : {run.y, run.last, run.dx, run.first_gradient}) written.push_back(of);
    for (const isobit_cuda_floats& of : written)
      ASSERT_EQ(cudaMemset(of.data, 0, static_cast<size_t>(of.count) * sizeof(float)), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  cudaStream_t stream;
  Random random{9};
  std::vector<std::unique_ptr<GuardedDeviceBuffer>> buffers;
  GuardedDeviceBuffer lengths, mask;
  std::vector<isobit_cuda_floats> weights, gradients;
  std::vector<GruTrainingWeights> parts;
  std::vector<GruTrainingGradients> into;
  isobit_cuda_gru_training_run run{};
  RunOptions options;
};

TEST_F(CudaFunctionRuns, TrainingGivesTheBytesOfTheClass) {
  if (racecheck()) return;
  using A = TrainingArrays;
  const isobit_cuda_gru_training_sizes sizes = {A::T, A::N, A::C, A::H, A::kLayers, A::kDirections};
  isobit_cuda_gru_training* training = nullptr;
  expect_ok(f_->gru_training_create(&sizes, "training", 0, &training));
  ASSERT_NE(training, nullptr);
  const Result<DeviceGruTraining> of_class = DeviceGruTraining::create({.steps = A::T,
                                                                        .batch = A::N,
                                                                        .input_size = A::C,
                                                                        .hidden_size = A::H,
                                                                        .layers = A::kLayers,
                                                                        .directions = A::kDirections},
                                                                       "gru");
  ASSERT_TRUE(of_class.ok()) << of_class.status().message();
  EXPECT_EQ(f_->gru_training_workspace_bytes(training), of_class->workspace_bytes());
  const GuardedDeviceBuffer workspace(of_class->workspace_bytes());
  A arrays(stream_);
  isobit_cuda_gru_training_run& run = arrays.run;
  run.saved = arrays.floats(of_class->saved_size());
  run.workspace = workspace.data();
  run.workspace_bytes = of_class->workspace_bytes();
  expect_ok(f_->gru_training_forward(training, &run));
  expect_ok(f_->gru_training_backward(training, &run));
  const std::vector<std::vector<float>> of_library = arrays.results();

  arrays.clear_results();
  const Status forward =
      of_class->forward(arrays.parts, A::span(run.x), A::span(run.y), A::span(run.saved), workspace.bytes(),
                        {.first = A::span(run.first), .last = A::span(run.last)}, arrays.options);
  ASSERT_TRUE(forward.ok()) << forward.message();
  const Status backward = of_class->backward(arrays.parts, A::span(run.x), A::span(run.y), A::span(run.saved),
                                             A::span(run.dy), A::span(run.dx), arrays.into, workspace.bytes(),
                                             {.first = A::span(run.first),
                                              .last_gradient = A::span(run.last_gradient),
                                              .first_gradient = A::span(run.first_gradient)},
                                             arrays.options);
  ASSERT_TRUE(backward.ok()) << backward.message();
  EXPECT_EQ(arrays.results(), of_library);

  run.gradients_count -= 4;
  EXPECT_EQ(f_->gru_training_backward(training, &run), static_cast<int32_t>(StatusCode::kInvalidArgument));
  EXPECT_STREQ(f_->last_error(), "training: gradients has 3 elements, must have 4: [layers * directions]");
  f_->gru_training_destroy(training);
}

TEST_F(CudaFunctionRuns, TrainingForIntegersGivesTheBytesOfTheClass) {
  if (racecheck()) return;
  using A = TrainingArrays;
  GruQuantization quantization;
  const GruModel model = calibrated(quantization);
  for (const GruRowGrids rows : {GruRowGrids::kDerived, GruRowGrids::kKept}) {
    const std::vector<std::byte> saved_model = *model.saved_bytes();
    const std::vector<isobit_cuda_row_options> options = row_options(quantization);
    isobit_cuda_gru_qat* qat = nullptr;
    expect_ok(f_->gru_qat_create(saved_model.data(), std::ssize(saved_model), options.data(), std::ssize(options),
                                 rows == GruRowGrids::kKept ? 1 : 0, "gru", 0, &qat));
    ASSERT_NE(qat, nullptr);
    const Result<DeviceGruQat> of_class = DeviceGruQat::create(model, quantization, "gru", {}, rows);
    ASSERT_TRUE(of_class.ok()) << of_class.status().message();
    const int64_t saved_bytes = of_class->saved_bytes(A::T, A::N);
    const int64_t workspace_bytes = of_class->workspace_bytes(A::T, A::N);
    EXPECT_EQ(f_->gru_qat_saved_bytes(qat, A::T, A::N), saved_bytes);
    EXPECT_EQ(f_->gru_qat_workspace_bytes(qat, A::T, A::N), workspace_bytes);
    const GuardedDeviceBuffer workspace(workspace_bytes), saved(saved_bytes);
    A arrays(stream_);
    isobit_cuda_gru_qat_run run{};
    run.saved = saved.data();
    run.saved_bytes = saved_bytes;
    run.steps = A::T;
    run.batch = A::N;
    run.arrays = arrays.run;
    run.arrays.workspace = workspace.data();
    run.arrays.workspace_bytes = workspace_bytes;
    std::vector<double> shares(6 * A::kLayers * A::kDirections + 1, -1.0);
    const auto check = [&](size_t count) {
      return f_->gru_qat_check(qat, A::T, A::N, saved.data(), saved_bytes, stream_, shares.data(),
                               static_cast<int64_t>(count));
    };
    expect_ok(f_->gru_qat_forward(qat, &run));
    expect_ok(f_->gru_qat_backward(qat, &run));
    expect_ok(check(shares.size()));
    const std::vector<std::vector<float>> of_library = arrays.results();

    arrays.clear_results();
    const isobit_cuda_gru_training_run& of = run.arrays;
    const Status forward =
        of_class->forward(arrays.parts, A::span(of.x), A::T, A::N, A::span(of.y), saved.bytes(), workspace.bytes(),
                          {.first = A::span(of.first), .last = A::span(of.last)}, arrays.options);
    ASSERT_TRUE(forward.ok()) << forward.message();
    const Status backward = of_class->backward(
        A::T, A::N, saved.bytes(), A::span(of.dy), A::span(of.dx), arrays.into, workspace.bytes(),
        {.last_gradient = A::span(of.last_gradient), .first_gradient = A::span(of.first_gradient)}, arrays.options);
    ASSERT_TRUE(backward.ok()) << backward.message();
    EXPECT_EQ(arrays.results(), of_library);
    const Result<GruQatShares> found = of_class->check(A::T, A::N, saved.bytes(), stream_);
    ASSERT_TRUE(found.ok()) << found.status().message();
    for (size_t i = 0; i < found->clipped.size(); ++i) {
      const std::array<double, kGruTensorCount>& share = found->clipped[i];
      EXPECT_EQ(std::vector<double>(shares.begin() + 6 * static_cast<std::ptrdiff_t>(i),
                                    shares.begin() + 6 * static_cast<std::ptrdiff_t>(i + 1)),
                (std::vector<double>{share[kH], share[kIh], share[kHh], share[kUIn], share[kRIn], share[kNIn]}));
    }
    EXPECT_EQ(shares.back(), found->clipped_inputs);

    constexpr auto kRefused = static_cast<int32_t>(StatusCode::kInvalidArgument);
    EXPECT_EQ(check(7), kRefused);
    EXPECT_STREQ(f_->last_error(), "shares has 7 elements, must have 25: 6 * layers * directions + 1");
    const float nan = std::numeric_limits<float>::quiet_NaN();
    ASSERT_EQ(cudaMemcpy(of.x.data, &nan, sizeof(nan), cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_ok(f_->gru_qat_forward(qat, &run));
    EXPECT_EQ(check(shares.size()), kRefused);
    EXPECT_EQ(std::string(f_->last_error()), of_class->check(A::T, A::N, saved.bytes(), stream_).status().message());
    EXPECT_EQ(std::string(f_->last_error()).find("gru: x[0] is NaN"), 0u) << f_->last_error();
    run.saved_bytes -= 1;
    EXPECT_EQ(f_->gru_qat_forward(qat, &run), kRefused);
    f_->gru_qat_destroy(qat);
  }
}

TEST_F(CudaFunctionRuns, FunctionsGiveTheBytesOfTheHost) {
  const Result<Fp16Table> table = builtin_fp16_table("silu", Fp16Model::kF32, false);
  ASSERT_TRUE(table.ok()) << table.status().message();
  const Result<Fp16Function> host = Fp16Function::create(*table);
  ASSERT_TRUE(host.ok()) << host.status().message();
  isobit_cuda_function* function = nullptr;
  expect_ok(f_->function_create(host->results().data(), static_cast<int64_t>(host->results().size()), 0, &function));
  ASSERT_NE(function, nullptr);
  std::vector<uint16_t> x(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  std::vector<std::byte> y(65536 * sizeof(float));
  ASSERT_TRUE(host->forward(std::as_bytes(std::span(x)), Dtype::kF16, y, Dtype::kF32, {}).ok());
  GuardedDeviceBuffer x_d(65536 * 2), y_d(65536 * 4);
  x_d.write(x);
  expect_ok(f_->function_run(function, x_d.data(), 65536 * 2, static_cast<int32_t>(Dtype::kF16), y_d.data(), 65536 * 4,
                             static_cast<int32_t>(Dtype::kF32), stream_));
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(y_d.read<std::byte>(), y);
  f_->function_destroy(function);
}

}  // namespace
}  // namespace isobit::cuda
