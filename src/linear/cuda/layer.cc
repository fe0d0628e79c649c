// SPDX-License-Identifier: Apache-2.0
// DeviceLinear: what is checked, and how a run is divided.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/arguments.h"
#include "core/cuda/upload.h"
#include "core/run_options.h"
#include "isobit/cuda/linear.h"
#include "linear/cuda/few.h"
#include "linear/cuda/image.h"
#include "linear/cuda/rows.h"
#include "linear/int8/int8.h"
#include "linear/layer_parts.h"

namespace isobit::cuda {
namespace {

int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

struct Device {
  int number = 0;
  int processors = 0;
  int shared = 0;  // bytes of a block
  bool bulk_copies = false;
};

Result<Device> current_device() {
  Device device;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device.number), "the current device"));
  const std::pair<cudaDeviceAttr, int*> wanted[] = {{cudaDevAttrMultiProcessorCount, &device.processors},
                                                    {cudaDevAttrMaxSharedMemoryPerBlockOptin, &device.shared}};
  for (const auto& [attribute, value] : wanted)
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(value, attribute, device.number), "device attributes"));
  ISOBIT_ASSIGN_OR_RETURN(device.bulk_copies, few_has_bulk_copies());
  return device;
}

RowsKind rows_kind(LinearActivations activations, Dtype x) {
  if (activations != LinearActivations::kFloat) return RowsKind::kCodes;
  return x == Dtype::kF16 ? RowsKind::kF16 : x == Dtype::kBF16 ? RowsKind::kBF16 : RowsKind::kF32;
}

}  // namespace

struct DeviceLinear::Data {
  Device device;
  ImageLayout image;
  LowBitKind kind = LowBitKind::kSymmetric;
  int32_t zero_point = 0, code_factor = 1;
  LinearActivations activations = LinearActivations::kFloat;
  LinearClamp clamp;
  std::shared_ptr<const std::byte> memory;
  const uint8_t* codes = nullptr;
  const uint8_t* parameters = nullptr;
  const float* bias = nullptr;

  [[nodiscard]] bool quantises() const { return activations != LinearActivations::kFloat; }
  [[nodiscard]] bool asymmetric() const { return activations == LinearActivations::kInt8Asymmetric; }
  /// Whether more is needed than scales and one zero point for all.
  [[nodiscard]] bool general() const { return kind != LowBitKind::kSymmetric || asymmetric(); }
  [[nodiscard]] RowsLayout rows_layout(RowsKind rows, int64_t m) const {
    return RowsLayout::of(image, rows, kind != LowBitKind::kSymmetric, m);
  }
  [[nodiscard]] int64_t workspace_bytes(RowsKind rows, int64_t m) const {
    return aligned_size(rows_layout(rows, m).bytes()) + kDeviceAlignment;
  }
  [[nodiscard]] FewArgs few_args(const RowsLayout& layout) const;
  [[nodiscard]] FewPlan few_plan(RowsKind rows, int64_t m, FewArgs& args) const;
};

/// All but pointers, rows and what the plan decides.
FewArgs DeviceLinear::Data::few_args(const RowsLayout& layout) const {
  FewArgs a{};
  a.w = codes;
  a.parameters = parameters;
  a.bias = bias;
  a.n = image.rows;
  a.blocks = static_cast<int32_t>(image.blocks);
  a.groups = static_cast<int32_t>(image.groups);
  a.group_blocks = static_cast<int32_t>(image.group_blocks);
  a.block_groups = static_cast<int32_t>(std::max<int64_t>(1, kBlockDepth / image.padded_group));
  a.x_parts = static_cast<int32_t>(layout.parts);
  a.x_part_bytes = static_cast<int32_t>(layout.part_bytes);
  a.x_block_parts = image.block_parts;
  a.whole = quantises() && image.groups == 1;
  const int64_t chunk_positions = kChunkGroups * image.padded_group;
  a.chunk_blocks = a.whole ? kBlocksStep : static_cast<int32_t>(chunk_positions / kBlockDepth);
  // The order of float sums is ours.
  if (!quantises()) a.chunk_blocks = std::min(a.chunk_blocks, kChunkGroups);
  a.chunks = static_cast<int32_t>(pieces(a.blocks, a.chunk_blocks));
  a.record_bytes = image.record_bytes;
  a.zero_points_at = image.zero_points_at;
  a.offsets_at = image.offsets_at;
  a.sums_at = image.sums_at;
  a.zero_point = zero_point;
  a.code_factor = code_factor;
  a.asymmetric = asymmetric();
  a.lo = clamp.lo;
  a.hi = clamp.hi;
  return a;
}

/// What the first block of a cluster gets from the others.
int64_t received_bytes(const FewArgs& a, int32_t cluster, int32_t rank_chunks, int columns) {
  const int64_t others = cluster == 1 ? 0 : a.whole ? cluster - 1 : std::max(0, a.chunks - rank_chunks);
  return others * columns * kStripRows * static_cast<int64_t>(sizeof(float));
}
constexpr int64_t kMostReceived = 65536;

/// Blocks of threads that share a strip: as many as give each processor the least to do one after the other; of equal
/// ones, those of which about four are on a processor.
FewPlan DeviceLinear::Data::few_plan(RowsKind rows, int64_t m, FewArgs& a) const {
  const int columns = m <= kXTileRows && rows != RowsKind::kF32 ? kXTileRows : kFewMaxRows;
  const int turn = few_turn_blocks(image.bits);
  const int64_t strips = image.strips * pieces(m, columns);
  constexpr double kWanted = 4;
  FewPlan plan;
  double least = 0;
  for (int32_t cluster = 1; cluster <= (device.bulk_copies ? std::min(kFewMaxCluster, a.chunks) : 1); ++cluster) {
    const auto rank_chunks = static_cast<int32_t>(pieces(a.chunks, cluster));
    if (received_bytes(a, cluster, rank_chunks, columns) > kMostReceived) continue;
    if (static_cast<int64_t>(rank_chunks) * (cluster - 1) >= a.chunks) continue;  // one would have nothing to do
    const int64_t of_processor = pieces(strips * cluster, device.processors);
    const double cost =
        static_cast<double>(of_processor * rank_chunks) + 0.01 * std::abs(static_cast<double>(of_processor) - kWanted);
    if (plan.cluster == 0 || cost < least) {
      least = cost;
      plan.cluster = cluster;
      a.rank_chunks = rank_chunks;
    }
  }
  a.cluster = plan.cluster;

  const auto aligned = [](int64_t bytes) { return pieces(bytes, 128) * 128; };
  const int64_t groups =
      image.padded_group >= kBlockDepth ? (turn - 2) / image.group_blocks + 2 : turn * int64_t{a.block_groups};
  const int64_t x_parts = rows == RowsKind::kCodes ? groups : turn * image.block_parts;
  const int tiles = columns / kXTileRows;
  a.parameters_at = static_cast<int32_t>(turn * image.block_bytes());
  a.x_at = static_cast<int32_t>(aligned(a.parameters_at + groups * image.record_bytes));
  a.x_parameters_at = static_cast<int32_t>(a.x_at + tiles * turn * row_block_bytes(rows));
  a.x_parameters_bytes = static_cast<int32_t>(aligned(x_parts * a.x_part_bytes));
  a.stage_bytes = a.x_parameters_at + tiles * a.x_parameters_bytes;
  a.stages_at =
      static_cast<int32_t>(pieces(kFewExchange + received_bytes(a, a.cluster, a.rank_chunks, columns), 1024) * 1024);

  constexpr int64_t kReserved = 1024;  // of each block, by the system
  constexpr int64_t kMostStages = 8;
  // Clusters do not fill all processors of their part of the device, so that more must fit one than there are for it.
  const int64_t resident =
      std::clamp<int64_t>(pieces(strips * a.cluster, device.processors) + (a.cluster > 2 ? 1 : 0), 1, 5);
  const int64_t room = (device.shared + kReserved) / resident - kReserved - a.stages_at;
  const int64_t turns = pieces(int64_t{a.rank_chunks} * a.chunk_blocks, turn);
  const int64_t wanted = device.bulk_copies ? std::min(turns, kMostStages) : kFewOldStages;
  plan.stages =
      static_cast<int32_t>(std::clamp<int64_t>(room / a.stage_bytes, device.bulk_copies ? 1 : wanted, wanted));
  a.stages = plan.stages;
  plan.shared = a.stages_at + int64_t{plan.stages} * a.stage_bytes;
  return plan;
}

Result<DeviceLinear> DeviceLinear::create(const LowBitMatrix& matrix, const LinearOptions& options,
                                          std::string_view name, std::optional<int> device) {
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_linear_options(options, matrix.rows(), text));
  if (options.path)
    return refuse_linear(text + ": path is " + std::string(to_string(*options.path)) +
                         ", must be empty for a layer on a device");
  const LowBitParameters& p = matrix.parameters();
  auto data = std::make_shared<Data>();
  data->activations = options.activations;
  if (data->quantises() && std::min(p.group, p.columns) > kMaxInt8Group)
    return Status(StatusCode::kUnsupported, text + ": groups have " + std::to_string(p.group) +
                                                " elements, must have at most " + std::to_string(kMaxInt8Group) +
                                                " where activations are quantised on the fly on a device");
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  ISOBIT_ASSIGN_OR_RETURN(data->device, current_device());
  data->image = ImageLayout::of(p, data->asymmetric());
  data->kind = p.kind;
  data->clamp = options.clamp;
  data->zero_point = p.kind == LowBitKind::kOffset ? p.zero_point : p.bits == 1 ? 1 : 1 << (p.bits - 1);
  data->code_factor = p.kind == LowBitKind::kSymmetric && p.bits == 1 ? 2 : 1;

  std::vector<float> bias(static_cast<size_t>(data->image.strips * kStripRows));
  std::copy(options.bias.begin(), options.bias.end(), bias.begin());
  const std::vector<std::byte> codes = pack_image_codes(matrix, data->image);
  const std::vector<std::byte> parameters = pack_image_parameters(matrix, data->image);
  Upload upload;
  upload.add(std::span(codes), data->codes);
  upload.add(std::span(parameters), data->parameters);
  upload.add(std::span<const float>(bias), data->bias);
  ISOBIT_ASSIGN_OR_RETURN(data->memory, upload.finish());
  DeviceLinear layer;
  layer.data_ = std::move(data);
  return layer;
}

int64_t DeviceLinear::rows() const { return data_->image.rows; }
int64_t DeviceLinear::columns() const { return data_->image.columns; }
LinearActivations DeviceLinear::activations() const { return data_->activations; }
int DeviceLinear::device() const { return data_->device.number; }
int64_t DeviceLinear::size_bytes() const {
  const ImageLayout& image = data_->image;
  return image.codes_bytes() + image.parameters_bytes() +
         image.strips * kStripRows * static_cast<int64_t>(sizeof(float));
}

int64_t DeviceLinear::workspace_bytes(int64_t m) const {
  return data_->workspace_bytes(data_->quantises() ? RowsKind::kCodes : RowsKind::kF32, std::max<int64_t>(m, 0));
}

Status DeviceLinear::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                             int64_t m, std::span<std::byte> workspace, const RunOptions& options) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(check_linear_types(x_dtype, y_dtype, data.activations));
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kStreamOption | kRowOptions, "a linear layer on a device"));
  LinearRows x_rows{"x", x.data(), x.size(), x_dtype, columns(), options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), y_dtype, rows(), options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_linear_rows(x_rows, y_rows, m));
  if (m == 0) return {};
  if (m > kMostRows)
    return refuse_linear("m is " + std::to_string(m) + ", must be at most " + std::to_string(kMostRows));
  const RowsKind kind = rows_kind(data.activations, x_dtype);
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
  ISOBIT_RETURN_IF_ERROR(check_alignment("workspace", workspace.data()));
  const int64_t needed = data.workspace_bytes(kind, m);
  if (static_cast<int64_t>(workspace.size()) < needed)
    return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must have " +
                           std::to_string(needed) + " for " + std::to_string(m) + " rows (workspace_bytes)");
  ISOBIT_RETURN_IF_ERROR(check_current_device(device(), "the layer"));
  const std::initializer_list<NamedBuffer> buffers = {{"x", x}, {"y", y}, {"workspace", workspace}};
  ISOBIT_RETURN_IF_ERROR(check_apart(buffers));
  for (const NamedBuffer& buffer : buffers) ISOBIT_RETURN_IF_ERROR(check_on_device(buffer, device()));
  ISOBIT_RETURN_IF_ERROR(check_stream(options.stream, device()));

  const RowsLayout layout = data.rows_layout(kind, m);
  ISOBIT_RETURN_IF_ERROR(prepare_rows(data.image, layout, {x.data(), x_dtype, x_rows.stride, m}, data.asymmetric(),
                                      workspace.data(), data.device.bulk_copies, options.stream));
  FewArgs args = data.few_args(layout);
  args.x = reinterpret_cast<const uint8_t*>(workspace.data());
  args.x_parameters = args.x + layout.parameters_at;
  args.y = y.data();
  args.y_stride = y_rows.stride;
  args.y_type = y_dtype == Dtype::kF32 ? 0 : y_dtype == Dtype::kF16 ? 1 : 2;
  args.m = m;
  const FewPlan plan = data.few_plan(kind, m, args);
  return run_few(data.image, kind, data.general(), plan, args, data.device.bulk_copies, options.stream);
}

Status DeviceLinear::check_input(std::span<std::byte> workspace, int64_t m, CUstream_st* stream) const {
  if (!data_->quantises() || m <= 0) return cuda_status(cudaStreamSynchronize(stream), "check_input");
  const RowsLayout layout = data_->rows_layout(RowsKind::kCodes, m);
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
  if (static_cast<int64_t>(workspace.size()) < data_->workspace_bytes(RowsKind::kCodes, m))
    return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must be that of a run of " +
                           std::to_string(m) + " rows");
  auto* const first = reinterpret_cast<unsigned long long*>(workspace.data() + aligned_size(layout.bytes()));
  unsigned long long row = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(first, 0xff, sizeof row, stream), "check_input"));
  ISOBIT_RETURN_IF_ERROR(find_refused_row(layout, workspace.data(), m, first, stream));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyAsync(&row, first, sizeof row, cudaMemcpyDeviceToHost, stream), "check_input"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "check_input"));
  if (row == ~0ull) return {};
  return refuse_linear("x[" + std::to_string(row) + "] has a NaN, an infinity, or a group whose range is infinite, " +
                       "must be finite");
}

}  // namespace isobit::cuda
