// SPDX-License-Identifier: Apache-2.0
// What Python holds of a GRU that trains for integers.
#ifndef ISOBIT_PYTHON_TRAINING_H_
#define ISOBIT_PYTHON_TRAINING_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <span>
#include <vector>

#include "cuda.h"
#include "errors.h"
#include "isobit/gru.h"
#include "isobit/table.h"
#include "isobit/tune.h"

namespace isobit::python {

using Arrays = std::vector<nanobind::any>;

/// A quantisation with the grids and tables of activations that it led to; weights are quantised anew in each call.
struct GruQat {
  GruSettings settings;
  GruQuantization quantization;
  GruModel model;  // of the weights that it was made with
  GruRowGrids rows = GruRowGrids::kDerived;
  std::shared_ptr<TableCache> tables = std::make_shared<TableCache>();

  [[nodiscard]] GruModel with(const GruWeights& weights, std::span<const GruGridChange> changes) const {
    return take(GruModel::create(
        take(with_grids(model.parameters(), changes, weights, quantization, tables.get(), rows)), tables.get()));
  }
  /// Its grids and tables on a device, made when they are first asked for.
  [[nodiscard]] const isobit_cuda_gru_qat* on(int device) const;

  OnDevices<isobit_cuda_gru_qat> copies;
};

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_TRAINING_H_
