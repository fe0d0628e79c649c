// SPDX-License-Identifier: Apache-2.0
#include <new>

#include "core/aligned_memory.h"
#include "isobit/run.h"

namespace isobit {

void Workspace::Free::operator()(std::byte* p) const { ::operator delete[](p, kMemoryAlignment); }

Workspace::Workspace(int64_t size_bytes)
    : bytes_(static_cast<std::byte*>(::operator new[](static_cast<size_t>(size_bytes), kMemoryAlignment))),
      size_bytes_(size_bytes) {}

}  // namespace isobit
