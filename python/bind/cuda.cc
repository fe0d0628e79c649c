// SPDX-License-Identifier: Apache-2.0
#include "cuda.h"

#include <dlfcn.h>
#include <nanobind/stl/pair.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace isobit::python {
namespace nb = nanobind;
namespace {

constexpr std::string_view kRelease = ISOBIT_VERSION;

/// Why `library`, which is open, is none of this package; empty: it is.
std::string refusal(void* library, const isobit_cuda_functions*& functions) {
  auto* const table = reinterpret_cast<isobit_cuda_table_type*>(dlsym(library, ISOBIT_CUDA_TABLE_SYMBOL));
  if (table == nullptr) return std::string(" is not libisobit_cuda.so: ") + dlerror();
  functions = table(ISOBIT_CUDA_FUNCTIONS_VERSION);
  if (functions->version == ISOBIT_CUDA_FUNCTIONS_VERSION && functions->release == kRelease) return {};
  const auto text = [](std::string_view release, int32_t version) {
    return std::string(release) + " with functions of version " + std::to_string(version);
  };
  return " is of isobit " + text(functions->release, functions->version) + ", must be of " +
         text(kRelease, ISOBIT_CUDA_FUNCTIONS_VERSION) + ", as this package; build both from the same sources";
}

/// found: a clause on how it came to be this file.
const isobit_cuda_functions* open_library(const std::string& file, const std::string& found) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    refuse_unsupported("an array on a CUDA device needs libisobit_cuda.so, which " + found + ": " + dlerror() +
                       ". Build it with nvcc (docs/python.md) and set ISOBIT_CUDA_LIBRARY to its full path");
  const isobit_cuda_functions* functions = nullptr;
  const std::string why_not = refusal(library, functions);
  if (why_not.empty()) return functions;  // it stays open: its objects live as long as the interpreter
  dlclose(library);                       // another file of that name may come
  refuse_unsupported(file + why_not);
}

const isobit_cuda_functions* find_library() {
  if (const char* const named = std::getenv("ISOBIT_CUDA_LIBRARY"); named != nullptr && *named != '\0')
    return open_library(named, "ISOBIT_CUDA_LIBRARY names");
  Dl_info module{};
  if (dladdr(reinterpret_cast<const void*>(&find_library), &module) != 0) {
    const std::filesystem::path beside = std::filesystem::path(module.dli_fname).parent_path() / "libisobit_cuda.so";
    std::error_code ignored;
    if (std::filesystem::exists(beside, ignored)) return open_library(beside.string(), "lies beside the package");
  }
  // Before 1.0 the minor version is part of the name, as of libisobit.so.
  const std::string name = "libisobit_cuda.so." + std::string(kRelease.substr(0, kRelease.rfind('.')));
  return open_library(name, "is looked for under the name " + name);
}

}  // namespace

const isobit_cuda_functions& cuda_functions() {
  static std::atomic<const isobit_cuda_functions*> functions = nullptr;
  if (functions == nullptr) functions = find_library();  // threads that come here at once find the same
  return *functions;
}

Stream::Stream(nb::handle tensor) {
  const auto [stream, number] =
      nb::cast<std::pair<nb::object, uintptr_t>>(nb::module_::import_("isobit._arrays").attr("stream")(tensor));
  object = stream;
  handle = reinterpret_cast<void*>(number);
}

}  // namespace isobit::python
