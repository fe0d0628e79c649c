// SPDX-License-Identifier: Apache-2.0
// Activation tables in device memory.
#ifndef ISOBIT_GRU_CUDA_TABLES_H_
#define ISOBIT_GRU_CUDA_TABLES_H_

#include <span>

#include "core/cuda/upload.h"
#include "isobit/table.h"
#include "table/reference.h"

namespace isobit::cuda {

/// Both outlive the upload.
inline void upload_table(Upload& upload, const ActivationTable& table, TableView& view) {
  upload.add(std::span(table.entries), view.entries);
  upload.add(std::span(table.anchors), view.anchors);
  upload.add(std::span(table.thresholds), view.thresholds);
  upload.add(std::span(table.slopes), view.slopes);
  upload.add(std::span(table.intercepts), view.intercepts);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_TABLES_H_
