// SPDX-License-Identifier: Apache-2.0
#include "cuda/library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace isobit::cuda {
namespace {

constexpr std::string_view kRelease = ISOBIT_VERSION;

Status refuse(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }

isobit_cuda_conv_axis library_axis(const ConvAxis& axis) {
  return {axis.kernel, axis.stride, axis.dilation, axis.pad_before, axis.pad_after, axis.more};
}

/// The table of `library`, which is open. Errors say what `file` is instead.
Result<const isobit_cuda_functions*> table_of(void* library, const std::string& file) {
  auto* const table = reinterpret_cast<isobit_cuda_table_type*>(dlsym(library, ISOBIT_CUDA_TABLE_SYMBOL));
  if (table == nullptr) return refuse(file + " is not libisobit_cuda.so: " + dlerror());
  const isobit_cuda_functions* const functions = table(ISOBIT_CUDA_FUNCTIONS_VERSION);
  if (functions->version == ISOBIT_CUDA_FUNCTIONS_VERSION && functions->release == kRelease) return functions;
  const auto text = [](std::string_view release, int32_t version) {
    return std::string(release) + " with functions of version " + std::to_string(version);
  };
  return refuse(file + " is of isobit " + text(functions->release, functions->version) + ", must be of " +
                text(kRelease, ISOBIT_CUDA_FUNCTIONS_VERSION) + ", as what loads it; build both from the same sources");
}

/// found: a clause on how it came to be this file.
Result<const isobit_cuda_functions*> open_library(const std::string& file, const std::string& found) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return refuse("a CUDA device needs libisobit_cuda.so, which " + found + ": " + dlerror() +
                  ". Build it with nvcc (docs/install.md) and set ISOBIT_CUDA_LIBRARY to its full path");
  Result<const isobit_cuda_functions*> functions = table_of(library, file);
  if (!functions.ok()) dlclose(library);  // another file of that name may come
  return functions;                       // else it stays open: objects of it live as long as the process
}

Result<const isobit_cuda_functions*> find_library() {
  if (const char* const named = std::getenv("ISOBIT_CUDA_LIBRARY"); named != nullptr && *named != '\0')
    return open_library(named, "ISOBIT_CUDA_LIBRARY names");
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&find_library), &here) != 0) {
    const std::filesystem::path folder = std::filesystem::path(here.dli_fname).parent_path();
    std::error_code ignored;
    if (std::filesystem::exists(folder / "libisobit_cuda.so", ignored))
      return open_library((folder / "libisobit_cuda.so").string(), "lies in " + folder.string());
  }
  // Before 1.0 the minor version is part of the name, as of libisobit.so.
  const std::string name = "libisobit_cuda.so." + std::string(kRelease.substr(0, kRelease.rfind('.')));
  return open_library(name, "is looked for under the name " + name);
}

}  // namespace

Result<const isobit_cuda_functions*> library_functions() {
  static std::atomic<const isobit_cuda_functions*> known = nullptr;
  if (const isobit_cuda_functions* const functions = known; functions != nullptr) return functions;
  ISOBIT_ASSIGN_OR_RETURN(const isobit_cuda_functions* const found, find_library());
  known = found;  // threads that come here at once find the same
  return found;
}

Status library_status(const isobit_cuda_functions& functions, int32_t code) {
  if (code == 0) return {};
  return {static_cast<StatusCode>(code), functions.last_error()};
}

isobit_cuda_conv_shape library_shape(const ConvShape& shape) {
  return {shape.channels,          shape.outputs, shape.groups, library_axis(shape.rows), library_axis(shape.columns),
          shape.transposed ? 1 : 0};
}

}  // namespace isobit::cuda
