// SPDX-License-Identifier: Apache-2.0
// What Python holds of a GRU.
#ifndef ISOBIT_PYTHON_GRU_H_
#define ISOBIT_PYTHON_GRU_H_

#include <nanobind/nanobind.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isobit/compare.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "isobit/run.h"

namespace isobit::python {

/// One call at a time: others wait. Recursive for a metric that uses the pool of the search that calls it.
struct Pool {
  explicit Pool(int threads) : pool(threads) {}
  ThreadPool pool;
  std::recursive_mutex mutex;
};

/// The threads of a call that takes a pool or none; holds them until it ends.
struct PoolUse {
  explicit PoolUse(Pool* used) : pool(used == nullptr ? nullptr : &used->pool) {
    if (used != nullptr) lock = std::unique_lock(used->mutex);
  }
  [[nodiscard]] int threads() const { return pool == nullptr ? 1 : pool->threads(); }
  ThreadPool* pool;
  std::unique_lock<std::recursive_mutex> lock;
};

/// Codes of h, with the model that they are of and the scratch memory of its calls. One call at a time: others wait.
struct State {
  GruModel model;
  GruState state;
  Workspace workspace;
  int64_t workspace_steps = -1;
  int workspace_threads = 0;
  std::mutex mutex;

  State(const GruModel& of, GruState first) : model(of), state(std::move(first)) {}
};

/// Statistics, and the methods that they are for.
struct Calibrator {
  GruCalibrator calibrator;
  std::string method;
};

/// A comparison, and after finish() what it found.
struct Comparison {
  GruComparison comparison;
  GruModel model;
  double part_codes;
  std::optional<GruValidation> validation;  // the same data, for an ablation
  std::vector<std::string> names;           // of sequences
  std::optional<GruComparisonReport> report;
  std::optional<GruAblation> ablation;
};

void bind_gru(nanobind::module_& m);
void bind_checks(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_pages(nanobind::module_& m);
void bind_tables(nanobind::module_& m);
void bind_tune(nanobind::module_& m);

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_GRU_H_
