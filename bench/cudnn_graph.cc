// SPDX-License-Identifier: Apache-2.0
#include "bench/cudnn_graph.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "bench/cudnn_objects.h"

namespace isobit::bench {
namespace {

/// Of one heuristic, in its order.
Result<std::vector<CudnnDescriptor>> configurations(const CudnnDescriptor& graph, cudnnBackendHeurMode_t mode) {
  CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "a heuristic");
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph).set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  ISOBIT_RETURN_IF_ERROR(heuristic.finalize());
  ISOBIT_ASSIGN_OR_RETURN(const int64_t count, heuristic.count(CUDNN_ATTR_ENGINEHEUR_RESULTS));
  std::vector<CudnnDescriptor> found;
  for (int64_t i = 0; i < count; ++i) found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "an engine's settings");
  ISOBIT_RETURN_IF_ERROR(heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, found));
  return found;
}

/// With the engine's number and settings for a name.
Result<CudnnProposal> proposal(const CudnnDescriptor& configuration) {
  std::vector<CudnnDescriptor> engine = {CudnnDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine")};
  ISOBIT_RETURN_IF_ERROR(configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, engine));
  std::vector<int64_t> index(1);
  ISOBIT_RETURN_IF_ERROR(engine[0].get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index));
  std::vector<cudnnBackendBehaviorNote_t> notes(CUDNN_BEHAVIOR_NOTE_TYPE_COUNT);
  ISOBIT_RETURN_IF_ERROR(engine[0].get(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, notes));
  std::vector<CudnnDescriptor> knobs;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "a knob");
  ISOBIT_RETURN_IF_ERROR(configuration.get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, knobs));
  std::string name = "engine " + std::to_string(index.at(0));
  for (const CudnnDescriptor& knob : knobs) {
    std::vector<cudnnBackendKnobType_t> type(1);
    std::vector<int64_t> value(1);
    ISOBIT_RETURN_IF_ERROR(knob.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, type));
    ISOBIT_RETURN_IF_ERROR(knob.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value));
    name += " " + std::to_string(static_cast<int>(type.at(0))) + "=" + std::to_string(value.at(0));
  }
  const bool reordered =
      std::find(notes.begin(), notes.end(), CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER) != notes.end();
  return CudnnProposal{std::move(name), configuration, reordered};
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type, std::string name) : name_(std::move(name)) {
  cudnnBackendDescriptor_t object = nullptr;
  status_ = cudnn_status(cudnnBackendCreateDescriptor(type, &object), name_);
  if (object != nullptr) object_ = {object, [](void* p) { cudnnBackendDestroyDescriptor(p); }};
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t attribute, const CudnnDescriptor& value) {
  return set(attribute, std::vector<CudnnDescriptor>{value});
}
CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t attribute,
                                      const std::vector<CudnnDescriptor>& values) {
  std::vector<cudnnBackendDescriptor_t> all;
  for (const CudnnDescriptor& value : values) all.push_back(value.raw());
  return set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(all.size()), all.data());
}
CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                                      int64_t count, const void* values) {
  if (status_.ok())
    status_ = cudnn_status(cudnnBackendSetAttribute(raw(), attribute, type, count, values),
                           name_ + ", attribute " + std::to_string(static_cast<int>(attribute)));
  return *this;
}

Status CudnnDescriptor::finalize() {
  if (status_.ok()) status_ = cudnn_status(cudnnBackendFinalize(raw()), name_);
  return status_;
}

Status CudnnDescriptor::get(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t most,
                            int64_t* count, void* values) const {
  ISOBIT_RETURN_IF_ERROR(status_);
  return cudnn_status(cudnnBackendGetAttribute(raw(), attribute, type, most, count, values),
                      name_ + ", attribute " + std::to_string(static_cast<int>(attribute)));
}
Status CudnnDescriptor::get(cudnnBackendAttributeName_t attribute, std::vector<CudnnDescriptor>& values) const {
  std::vector<cudnnBackendDescriptor_t> all;
  for (const CudnnDescriptor& value : values) {
    ISOBIT_RETURN_IF_ERROR(value.status_);
    all.push_back(value.raw());
  }
  int64_t count = 0;
  ISOBIT_RETURN_IF_ERROR(
      get(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(all.size()), &count, all.data()));
  if (count < static_cast<int64_t>(values.size())) values.erase(values.begin() + count, values.end());
  return {};
}
Result<int64_t> CudnnDescriptor::count(cudnnBackendAttributeName_t attribute) const {
  int64_t count = 0;
  ISOBIT_RETURN_IF_ERROR(get(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  return count;
}

Result<std::vector<CudnnProposal>> cudnn_proposals(const CudnnDescriptor& graph) {
  std::vector<std::vector<CudnnDescriptor>> lists;
  Status why;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    Result<std::vector<CudnnDescriptor>> found = configurations(graph, mode);
    if (found.ok())
      lists.push_back(*std::move(found));
    else if (why.ok())
      why = found.status();
  }
  std::vector<CudnnProposal> all;
  size_t longest = 0;
  for (const auto& list : lists) longest = std::max(longest, list.size());
  for (size_t rank = 0; rank < longest; ++rank)
    for (const auto& list : lists) {
      if (rank >= list.size()) continue;
      Result<CudnnProposal> next = proposal(list[rank]);
      if (!next.ok()) {
        if (why.ok()) why = next.status();
        continue;
      }
      if (std::none_of(all.begin(), all.end(), [&](const CudnnProposal& other) { return other.name == next->name; }))
        all.push_back(*std::move(next));
    }
  if (!all.empty()) return all;
  return why.ok() ? Status(StatusCode::kUnsupported, "cuDNN's heuristics propose no engine") : why;
}

Result<CudnnDescriptor> cudnn_plan(cudnnHandle_t handle, const CudnnDescriptor& configuration,
                                   size_t& workspace_bytes) {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle).set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  ISOBIT_RETURN_IF_ERROR(plan.finalize());
  std::vector<int64_t> bytes(1);
  ISOBIT_RETURN_IF_ERROR(plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, bytes));
  workspace_bytes = static_cast<size_t>(bytes.at(0));
  return plan;
}

}  // namespace isobit::bench
