// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>
#include <tuple>

#include "isobit/table.h"

namespace isobit {
namespace {

using GridKey = std::tuple<int32_t, bool, ScaleKind, int32_t, float, int64_t>;
GridKey key_of(const Grid& g) { return {g.bits, g.is_signed, g.kind, g.shift, g.real_scale, g.zero_point}; }

/// What a table is of, and the options that it was fitted with.
using TableKey = std::tuple<Activation, GridKey, GridKey, Rounding>;
using OptionsKey = std::tuple<TableKind, int32_t, int32_t>;

}  // namespace

struct TableCache::Impl {
  mutable std::mutex mutex;
  std::map<TableKey, std::map<OptionsKey, ActivationTable>> tables;
};

TableCache::TableCache() : impl_(std::make_unique<Impl>()) {}
TableCache::~TableCache() = default;

Result<ActivationTable> TableCache::fit(Activation function, const Grid& input, const Grid& output,
                                        const TableOptions& options, Rounding rounding) {
  const TableKey key{function, key_of(input), key_of(output), rounding};
  const OptionsKey fitted_with{options.kind, options.segments, options.guard_bits};
  {
    const std::lock_guard lock(impl_->mutex);
    const auto found = impl_->tables.find(key);
    if (found != impl_->tables.end()) {
      const auto table = found->second.find(fitted_with);
      if (table != found->second.end()) return table->second;
    }
  }
  ISOBIT_ASSIGN_OR_RETURN(ActivationTable table, fit_table(function, input, output, options, rounding));
  const std::lock_guard lock(impl_->mutex);
  impl_->tables[key].emplace(fitted_with, table);
  return table;
}

bool TableCache::made(const ActivationTable& table) const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->tables.find({table.function, key_of(table.input), key_of(table.output), table.rounding});
  if (found == impl_->tables.end()) return false;
  for (const auto& [options, made] : found->second) {
    if (made == table) return true;
  }
  return false;
}

}  // namespace isobit
