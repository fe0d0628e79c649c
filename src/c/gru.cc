// SPDX-License-Identifier: Apache-2.0
#include "isobit/gru.h"

#include <string>
#include <utility>

#include "c/boundary.h"
#include "core/codes.h"

struct isobit_gru {
  isobit::GruModel model;
};

// The model is the owner's, shared: it outlives the handle that it came from.
struct isobit_gru_state {
  isobit::GruModel model;
  isobit::GruState state;
};

struct isobit_gru_workspace {
  isobit::Workspace workspace;
};

namespace isobit::c {
namespace {

__extension__ typedef __int128 Int128;

/// A workspace has less than this many bytes for each step and sequence and each of C + 3 D H; what is beyond it has
/// no memory anywhere, and products below it do not overflow.
constexpr int64_t kMaxWorkspace = int64_t{1} << 48;

bool same_model(const GruModel& a, const GruModel& b) { return &a.parameters() == &b.parameters(); }

Status check_state(const isobit_gru* gru, const isobit_gru_state* state) {
  ISOBIT_RETURN_IF_ERROR(check_pointer(state, "state"));
  return same_model(gru->model, state->model) ? Status() : refuse("state was made by another model");
}

/// Refuses a count other than a * b * c without computing a product that overflows.
Status check_count(int64_t count, int64_t a, int64_t b, int64_t c, const char* name, const char* shape) {
  const Int128 wanted = static_cast<Int128>(a) * b * c;  // a, b below 2^31, c at most 2^26
  if (wanted == count) return {};
  return refuse(std::string(name) + " has " + std::to_string(count) + " elements, must have " + std::to_string(a) +
                " * " + std::to_string(b) + " * " + std::to_string(c) + " (" + shape + ")");
}

Status check_states(const isobit_gru_state* from, const isobit_gru_state* to) {
  ISOBIT_RETURN_IF_ERROR(check_pointer(from, "from"));
  ISOBIT_RETURN_IF_ERROR(check_pointer(to, "to"));
  if (from->state.batch() == to->state.batch()) return {};
  return refuse("from has " + std::to_string(from->state.batch()) + " sequences, must have " +
                std::to_string(to->state.batch()) + " as to has");
}

Result<RunOptions> run_options(const isobit_gru_run_options* in) {
  isobit_gru_run_options c;
  ISOBIT_RETURN_IF_ERROR(read_optional_struct(in, c, "options"));
  RunOptions out;
  ISOBIT_ASSIGN_OR_RETURN(out.path, cpu_path_of(c.cpu_path, "options->cpu_path"));
  ISOBIT_ASSIGN_OR_RETURN(out.lengths, span_of(c.lengths, c.length_count, "options->lengths"));
  ISOBIT_ASSIGN_OR_RETURN(out.zoneout_mask, span_of(c.zoneout_mask, c.zoneout_count, "options->zoneout_mask"));
  ISOBIT_RETURN_IF_ERROR(check_flag(c.batch_first, "options->batch_first"));
  ISOBIT_RETURN_IF_ERROR(check_flag(c.whole_sequence, "options->whole_sequence"));
  out.batch_first = c.batch_first == 1;
  out.whole_sequence = c.whole_sequence == 1;
  out.pool = pool_of(c.pool);
  return out;
}

/// What forward and forward_codes check alike; x and y as bytes.
struct Run {
  std::span<const std::byte> x;
  std::span<std::byte> y;
  RunOptions options;
};
Result<Run> check_run(const isobit_gru* gru, const void* x, int64_t x_count, Dtype x_dtype, void* y, int64_t y_count,
                      Dtype y_dtype, int64_t steps, const isobit_gru_state* state,
                      const isobit_gru_workspace* workspace, const isobit_gru_run_options* options) {
  Run run;
  ISOBIT_RETURN_IF_ERROR(check_between(steps, 0, kMaxExtent, "steps"));
  ISOBIT_RETURN_IF_ERROR(check_state(gru, state));
  ISOBIT_RETURN_IF_ERROR(check_pointer(workspace, "workspace"));
  ISOBIT_ASSIGN_OR_RETURN(run.x, bytes_of(x, x_count, x_dtype, "x"));
  ISOBIT_ASSIGN_OR_RETURN(run.y, writable_bytes_of(y, y_count, y_dtype, "y"));
  const int64_t batch = state->state.batch();
  ISOBIT_RETURN_IF_ERROR(check_count(x_count, steps, batch, gru->model.input_size(), "x", "T * N * C"));
  ISOBIT_RETURN_IF_ERROR(check_count(y_count, steps, batch, gru->model.output_size(), "y", "T * N * D * H"));
  ISOBIT_ASSIGN_OR_RETURN(run.options, run_options(options));
  ISOBIT_RETURN_IF_ERROR(check_apart(run.y, "y", run.x, "x"));
  ISOBIT_RETURN_IF_ERROR(check_apart(run.y, "y", std::as_bytes(run.options.lengths), "options->lengths"));
  ISOBIT_RETURN_IF_ERROR(check_apart(run.y, "y", std::as_bytes(run.options.zoneout_mask), "options->zoneout_mask"));
  return run;
}

/// The overflow proof holds for codes of the grid only.
Status check_codes(const Grid& grid, std::span<const std::byte> x) {
  if (grid.bits == static_cast<int32_t>(8 * size_in_bytes(grid.dtype()))) return {};
  const auto count = static_cast<int64_t>(x.size() / size_in_bytes(grid.dtype()));
  for (int64_t i = 0; i < count; ++i)
    if (const int64_t code = load_code(x.data(), grid.dtype(), i); code < grid.min() || code > grid.max())
      return refuse("x[" + std::to_string(i) + "] is " + std::to_string(code) + ", must be a code of " +
                    std::to_string(grid.min()) + ".." + std::to_string(grid.max()));
  return {};
}

}  // namespace
}  // namespace isobit::c

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

int32_t isobit_gru_load(const char* path, const char* name, isobit_gru** gru) {
  return make_handle(gru, "gru", [&]() -> Result<isobit_gru> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(path, "path"));
    ISOBIT_ASSIGN_OR_RETURN(auto model, GruModel::load(path, name == nullptr ? "" : name));
    return isobit_gru{std::move(model)};
  });
}

void isobit_gru_destroy(isobit_gru* gru) { delete gru; }

int32_t isobit_gru_get_info(const isobit_gru* gru, isobit_gru_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(gru, "gru"));
    const GruModel& model = gru->model;
    isobit_gru_info out{};
    out.directions = model.parameters().directions;
    out.layers = model.layer_count();
    out.input_size = model.input_size();
    out.hidden_size = model.hidden_size();
    out.output_size = model.output_size();
    out.input_dtype = static_cast<int32_t>(model.input_grid().dtype());
    out.output_dtype = static_cast<int32_t>(model.output_grid().dtype());
    out.input_grid = grid_to_c(model.input_grid());
    out.output_grid = grid_to_c(model.output_grid());
    return write_struct(info, out, "info");
  });
}

int32_t isobit_gru_state_create(const isobit_gru* gru, int64_t batch, isobit_gru_state** state) {
  return make_handle(state, "state", [&]() -> Result<isobit_gru_state> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(gru, "gru"));
    ISOBIT_RETURN_IF_ERROR(check_between(batch, 0, kMaxExtent, "batch"));
    return isobit_gru_state{gru->model, gru->model.initial_state(batch)};
  });
}

void isobit_gru_state_destroy(isobit_gru_state* state) { delete state; }

int32_t isobit_gru_state_reset(isobit_gru_state* state) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(state, "state"));
    state->state = state->model.initial_state(state->state.batch());
    return {};
  });
}

int32_t isobit_gru_state_copy(const isobit_gru_state* from, isobit_gru_state* to) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_states(from, to));
    if (!same_model(from->model, to->model))
      return refuse("from is of another model than to; isobit_gru_state_hand_over requantises it");
    to->state = from->state;
    return {};
  });
}

int32_t isobit_gru_state_hand_over(const isobit_gru_state* from, isobit_gru_state* to) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_states(from, to));
    ISOBIT_ASSIGN_OR_RETURN(to->state, to->model.state_from(from->model, from->state));
    return {};
  });
}

int32_t isobit_gru_state_set(isobit_gru_state* state, const float* h, int64_t count) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(state, "state"));
    ISOBIT_ASSIGN_OR_RETURN(const auto values, span_of(h, count, "h"));
    ISOBIT_RETURN_IF_ERROR(check_count(count, state->state.layer_count(), state->state.batch(),
                                       state->model.hidden_size(), "h", "L * D * N * H"));
    ISOBIT_ASSIGN_OR_RETURN(state->state, state->model.state_from_float(values, state->state.batch()));
    return {};
  });
}

int32_t isobit_gru_state_get(const isobit_gru_state* state, float* h, int64_t count) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(state, "state"));
    ISOBIT_ASSIGN_OR_RETURN(const auto values, span_of(h, count, "h"));
    ISOBIT_RETURN_IF_ERROR(check_count(count, state->state.layer_count(), state->state.batch(),
                                       state->model.hidden_size(), "h", "L * D * N * H"));
    state->model.state_to_float(state->state, values);
    return {};
  });
}

int32_t isobit_gru_workspace_create(const isobit_gru* gru, int64_t batch, int64_t steps, int32_t threads,
                                    isobit_gru_workspace** workspace) {
  return make_handle(workspace, "workspace", [&]() -> Result<isobit_gru_workspace> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(gru, "gru"));
    ISOBIT_RETURN_IF_ERROR(check_between(batch, 0, kMaxExtent, "batch"));
    ISOBIT_RETURN_IF_ERROR(check_between(steps, 0, kMaxExtent, "steps"));
    ISOBIT_RETURN_IF_ERROR(check_between(threads, 1, kMaxThreads, "threads"));
    const int64_t width = gru->model.input_size() + 3 * gru->model.output_size();
    if (static_cast<Int128>(batch) * steps * width > kMaxWorkspace)
      return refuse("batch * steps is " + std::to_string(batch) + " * " + std::to_string(steps) + ", must be at most " +
                    std::to_string(kMaxWorkspace / width) + " for this model");
    return isobit_gru_workspace{gru->model.workspace(batch, steps, threads)};
  });
}

void isobit_gru_workspace_destroy(isobit_gru_workspace* workspace) { delete workspace; }

int64_t isobit_gru_workspace_size_bytes(const isobit_gru_workspace* workspace) {
  return workspace == nullptr ? 0 : workspace->workspace.size_bytes();
}

int32_t isobit_gru_forward(const isobit_gru* gru, const float* x, int64_t x_count, float* y, int64_t y_count,
                           int64_t steps, isobit_gru_state* state, isobit_gru_workspace* workspace,
                           const isobit_gru_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(gru, "gru"));
    ISOBIT_ASSIGN_OR_RETURN(const Run run, check_run(gru, x, x_count, Dtype::kF32, y, y_count, Dtype::kF32, steps,
                                                     state, workspace, options));
    return gru->model.forward(run.x, Dtype::kF32, run.y, Dtype::kF32, steps, state->state, workspace->workspace,
                              run.options);
  });
}

int32_t isobit_gru_forward_codes(const isobit_gru* gru, const void* x, int64_t x_count, void* y, int64_t y_count,
                                 int64_t steps, isobit_gru_state* state, isobit_gru_workspace* workspace,
                                 const isobit_gru_run_options* options) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(gru, "gru"));
    const Grid& in = gru->model.input_grid();
    ISOBIT_ASSIGN_OR_RETURN(const Run run,
                            check_run(gru, x, x_count, in.dtype(), y, y_count, gru->model.output_grid().dtype(), steps,
                                      state, workspace, options));
    ISOBIT_RETURN_IF_ERROR(check_codes(in, run.x));
    return gru->model.forward_codes(run.x, run.y, steps, state->state, workspace->workspace, run.options);
  });
}
