// SPDX-License-Identifier: Apache-2.0
#include "isobit/dtype.h"

namespace isobit {

std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::kS8: return "s8";
    case Dtype::kU8: return "u8";
    case Dtype::kS16: return "s16";
    case Dtype::kU16: return "u16";
    case Dtype::kS32: return "s32";
    case Dtype::kU32: return "u32";
    case Dtype::kS64: return "s64";
    case Dtype::kF16: return "f16";
    case Dtype::kBF16: return "bf16";
    case Dtype::kF32: return "f32";
    case Dtype::kF64: return "f64";
  }
  return "unknown";
}

}  // namespace isobit
