// SPDX-License-Identifier: Apache-2.0
// What an output may be called: isobit/files.h.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "isobit/files.h"

namespace isobit {
namespace {

namespace fs = std::filesystem;

struct OutputForm {
  OutputKind kind;
  const char* what;
  std::vector<std::string_view> endings;  // those of its own
  bool needs_one;                         // no other, and not none
  bool no_other;                          // no other
};
const OutputForm& output_form(OutputKind kind) {
  static const OutputForm kForms[] = {
      {OutputKind::kSafetensors, "safetensors", {".safetensors", ".st"}, false, false},
      {OutputKind::kTensor, "npy", {".npy"}, false, false},
      {OutputKind::kArray, "npy", {".npy"}, true, true},
      {OutputKind::kArrays, "npy or npz", {".npy", ".npz"}, true, true},
      {OutputKind::kState, "npz", {".npz"}, false, false},
      {OutputKind::kSvg, "an SVG picture", {".svg"}, false, true},
      {OutputKind::kHtml, "a page in HTML", {".html", ".htm"}, false, true},
      {OutputKind::kHex, "a memory image, text", {".hex", ".mem", ".txt"}, false, false},
  };
  return kForms[static_cast<size_t>(kind)];
}

/// Endings of formats that people keep models, data, pictures and sources in. Any other is a part of the name.
constexpr std::string_view kKnownEndings[] = {
    ".safetensors", ".st",  ".npy",  ".npz",   ".gguf",   ".ggml",    ".onnx", ".pt",  ".pth", ".ckpt", ".bin",  ".pkl",
    ".pb",          ".h5",  ".hdf5", ".keras", ".tflite", ".mlmodel", ".json", ".csv", ".txt", ".wav",  ".flac", ".mp3",
    ".svg",         ".png", ".jpg",  ".pdf",   ".html",   ".htm",     ".c",    ".h",   ".hex", ".mem",   ".zip"};

Status check_ending(const std::string& path, const std::string& what, OutputKind kind) {
  const OutputForm& output = output_form(kind);
  std::string ending = fs::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto has = [&](const auto& list) { return std::find(list.begin(), list.end(), ending) != list.end(); };
  if (has(output.endings)) return {};
  const bool known = has(std::span(kKnownEndings));
  if (!output.needs_one && (ending.empty() || (!known && !output.no_other))) return {};
  std::string expected;
  for (const std::string_view own : output.endings) expected.append(expected.empty() ? "" : " or ").append(own);
  return {StatusCode::kInvalidArgument, what + " " + path + ": what is written is " + output.what +
                                            ", so the name must end in " + expected +
                                            (output.needs_one ? "" : ", or have no ending")};
}

}  // namespace

Status check_output(const std::string& path, const std::string& what, OutputKind kind, FileClaims& files) {
  std::error_code error;
  if (path.empty()) return {StatusCode::kInvalidArgument, what + " must not be empty"};
  if (fs::is_directory(path, error)) {
    return {StatusCode::kInvalidArgument, what + " " + path + ": is a folder; give a file name"};
  }
  const auto type = fs::status(path, error).type();
  const bool is_device = type != fs::file_type::not_found && type != fs::file_type::regular;
  if (output_form(kind).needs_one || !is_device) ISOBIT_RETURN_IF_ERROR(check_ending(path, what, kind));
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::is_directory(folder, error)) {
    return {StatusCode::kIo, what + " " + path + ": there is no folder " + folder + "; create it first"};
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return {StatusCode::kIo, what + " " + path + ": the folder " + folder + " is not writable"};
  }
  return files.writes(path, what);
}

}  // namespace isobit
