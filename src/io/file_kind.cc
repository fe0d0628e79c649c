// SPDX-License-Identifier: Apache-2.0
// What a file is, by its content: those that are read, and those that people give by mistake.
#include <algorithm>
#include <string_view>

#include "io/container.h"
#include "io/metadata.h"

namespace isobit {
namespace {

struct Beginning {
  size_t offset;
  std::string_view bytes;
  FileKind kind;
};
constexpr Beginning kBeginnings[] = {
    {0, "\x93NUMPY", FileKind::kNpy},
    {0, "GGUF", FileKind::kGguf},
    {0, "version https://git-lfs.github.com/spec/", FileKind::kGitLfsPointer},
    {0, "\x89HDF\r\n\x1a\n", FileKind::kHdf5},
    {4, "TFL3", FileKind::kTfLite},
    {257, "ustar", FileKind::kTar},
    {0, "\x1f\x8b", FileKind::kCompressed},
    {0, "BZh", FileKind::kCompressed},
    {0,
     "\xfd"
     "7zXZ",
     FileKind::kCompressed},
    {0, "\x28\xb5\x2f\xfd", FileKind::kCompressed},
};

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// Field 1 of the protobuf, ir_version, and one of the fields that writers let follow.
bool is_onnx(std::string_view text) {
  if (text.size() < 3 || text[0] != 0x08 || text[1] < 1 || text[1] > 0x20) return false;
  return std::string_view("\x12\x1a\x22\x28\x32\x3a\x42").find(text[2]) != std::string_view::npos;
}

/// Protocol 2 to 5; torch.save of old wrote such a file.
bool is_pickle(std::string_view text) { return text.size() > 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5; }

}  // namespace

std::string_view to_string(FileKind kind) {
  switch (kind) {
    case FileKind::kNpy: return "npy";
    case FileKind::kNpz: return "npz";
    case FileKind::kSafetensors: return "safetensors";
    case FileKind::kGruModels: return "integer GRUs of isobit";
    case FileKind::kFp16Table: return "an activation table of isobit";
    case FileKind::kLowBit: return "low-bit weights of isobit";
    case FileKind::kStaticLinear: return "static linear layers of isobit";
    case FileKind::kStaticConv: return "static convolutions of isobit";
    case FileKind::kOtherSaved: return "a file of isobit";
    case FileKind::kSafetensorsIndex: return "safetensors index";
    case FileKind::kGguf: return "GGUF";
    case FileKind::kOnnx: return "ONNX";
    case FileKind::kEmpty: return "empty";
    case FileKind::kGitLfsPointer: return "a pointer of Git LFS";
    case FileKind::kPytorch: return "a PyTorch checkpoint";
    case FileKind::kPickle: return "a Python pickle";
    case FileKind::kHdf5: return "an HDF5 file";
    case FileKind::kKeras: return "a Keras model";
    case FileKind::kTfLite: return "a TensorFlow Lite model";
    case FileKind::kHtml: return "an HTML page";
    case FileKind::kJson: return "JSON text";
    case FileKind::kTar: return "a tar archive";
    case FileKind::kZip: return "a zip archive";
    case FileKind::kCompressed: return "a compressed file";
    case FileKind::kUnknown: return "unknown";
  }
  return "invalid";
}

FileKind kind_of_beginning(std::string_view text) {
  if (text.empty()) return FileKind::kEmpty;
  for (const Beginning& known : kBeginnings)
    if (text.size() > known.offset && text.substr(known.offset).starts_with(known.bytes)) return known.kind;
  if (text.size() > 8 && text[8] == '{') return FileKind::kSafetensors;
  if (is_onnx(text)) return FileKind::kOnnx;
  if (is_pickle(text)) return FileKind::kPickle;
  const size_t begin = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (begin == std::string_view::npos) return FileKind::kUnknown;
  if (text[begin] == '{') return FileKind::kJson;
  const std::string tag = lower_case(text.substr(begin, 14));
  if (tag.starts_with("<!doctype html") || tag.starts_with("<html")) return FileKind::kHtml;
  return FileKind::kUnknown;
}

FileKind kind_of_archive(const std::vector<std::string>& names) {
  const auto has = [&names](std::string_view end) {
    return std::any_of(names.begin(), names.end(), [end](const std::string& name) { return name.ends_with(end); });
  };
  if (has(".npy")) return FileKind::kNpz;
  if (has("data.pkl")) return FileKind::kPytorch;
  if (has(".weights.h5")) return FileKind::kKeras;
  return FileKind::kZip;
}

Result<FileKind> kind_of(const SharedContent& content) {
  if (is_index_name(content->name()) && content->size_bytes() > 0) return FileKind::kSafetensorsIndex;
  ISOBIT_ASSIGN_OR_RETURN(const std::string beginning, content->beginning(kBeginningBytes));
  // Which zip archive it is, open_npz says: an empty one is an npz of no arrays.
  if (beginning.starts_with("PK\x03\x04") || beginning.starts_with("PK\x05\x06")) return FileKind::kNpz;
  const FileKind kind = kind_of_beginning(beginning);
  if (kind != FileKind::kOnnx) return kind;
  ISOBIT_ASSIGN_OR_RETURN(const bool is_model, has_onnx_graph(*content));  // other protobufs begin in the same way
  return is_model ? kind : FileKind::kUnknown;
}

FileKind kind_of_saved(const Container& container) {
  const auto text = container.metadata.find(kMetadataKey);
  if (text == container.metadata.end()) return FileKind::kSafetensors;
  constexpr std::pair<std::string_view, FileKind> kKinds[] = {{"grus", FileKind::kGruModels},
                                                              {"fp16_table", FileKind::kFp16Table},
                                                              {"matrices", FileKind::kLowBit},
                                                              {"static_linears", FileKind::kStaticLinear},
                                                              {"static_convs", FileKind::kStaticConv}};
  FileKind kind = FileKind::kOtherSaved;
  // Nothing below the keys is kept.
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth != 1 || event != Json::parse_event_t::key) return depth == 0;
    for (const auto& [name, of_name] : kKinds)
      if (parsed.get_ref<const std::string&>() == name) kind = of_name;
    return true;
  };
  const Json json = Json::parse(text->second, look, /*allow_exceptions=*/false);
  return json.is_object() ? kind : FileKind::kOtherSaved;
}

Status refuse_kind(FileKind kind, const FileContent& content) {
  const auto refuse = [&](const std::string& hint) {
    return Status(StatusCode::kUnsupported, content.name() + ": is " + std::string(to_string(kind)) + hint);
  };
  const auto invalid = [&](const std::string& what) {
    return Status(StatusCode::kInvalidFile, content.name() + ": " + what);
  };
  const char* const kFromPython = "; load it in Python and save its tensors with safetensors' save_file or numpy.savez";
  switch (kind) {
    case FileKind::kEmpty: return invalid("is empty: the file, or what came through the pipe, has 0 bytes");
    case FileKind::kGitLfsPointer: return refuse(", which stands for the file itself; git lfs pull fetches that");
    case FileKind::kPytorch:
      return refuse(" (torch.save); load it with torch.load and save its tensors with safetensors.torch.save_file");
    case FileKind::kPickle:
      return refuse(
          ", perhaps an old PyTorch checkpoint; load it with torch.load and save its tensors with "
          "safetensors.torch.save_file");
    case FileKind::kHdf5: return refuse(std::string(", perhaps Keras weights (.h5)") + kFromPython);
    case FileKind::kKeras: return refuse(std::string(" (.keras)") + kFromPython);
    case FileKind::kTfLite: return refuse(", which is not read; convert the model that it was made from");
    case FileKind::kHtml: return refuse(": the server sent a web page instead of the file; download it again");
    case FileKind::kJson: return refuse("; a safetensors index is read when its name ends in .safetensors.index.json");
    case FileKind::kTar: return refuse("; unpack it and name the file in it");
    case FileKind::kCompressed: return refuse(" (gzip, bzip2, xz or zstd); uncompress it first");
    case FileKind::kZip: return refuse(" without an array (.npy) in it");
    case FileKind::kNpy:
    case FileKind::kNpz:
    case FileKind::kSafetensors:
    case FileKind::kGruModels:
    case FileKind::kFp16Table:
    case FileKind::kLowBit:
    case FileKind::kStaticLinear:
    case FileKind::kStaticConv:
    case FileKind::kOtherSaved:
    case FileKind::kSafetensorsIndex:
    case FileKind::kGguf:
    case FileKind::kOnnx: return refuse("; expected another kind of file here");
    case FileKind::kUnknown: break;
  }
  return invalid("neither npy nor npz nor safetensors nor GGUF nor ONNX (" + std::to_string(content.size_bytes()) +
                 " bytes, unknown beginning)");
}

Result<FileKind> file_kind(const std::string& path) {
  return without_exceptions(path, [&]() -> Result<FileKind> {
    ISOBIT_ASSIGN_OR_RETURN(const SharedContent content, FileContent::open(path));
    ISOBIT_ASSIGN_OR_RETURN(const FileKind kind, kind_of(content));
    if (kind == FileKind::kSafetensors) {
      ISOBIT_ASSIGN_OR_RETURN(const SharedContainer container, open_safetensors(content));
      return kind_of_saved(*container);
    }
    if (kind != FileKind::kNpz) return kind;
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in_archive(content));
    return names.empty() ? kind : kind_of_archive(names);
  });
}

}  // namespace isobit
