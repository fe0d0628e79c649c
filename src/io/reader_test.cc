// SPDX-License-Identifier: Apache-2.0
// ArrayReader: directories with types that are not read, lazy reading, pipes; and what kind a file is.
#include <sys/stat.h>
#include <zip.h>

#include <thread>

#include "io/gguf/seed.h"
#include "io/test_files.h"
#include "isobit/gguf.h"

namespace isobit {
namespace {

std::string npy(const std::string& descr, const std::string& shape, const std::string& elements) {
  const std::string header = "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
  return "\x93NUMPY\x01" + std::string(1, '\0') + number(header.size(), 2) + header + elements;
}

struct Member {
  std::string name;
  std::string content;
};

std::string zip_of(const std::vector<Member>& members) {
  zip_source_t* sink = zip_source_buffer_create(nullptr, 0, 0, nullptr);
  zip_t* archive = zip_open_from_source(sink, ZIP_TRUNCATE | ZIP_CREATE, nullptr);
  zip_source_keep(sink);
  for (const Member& member : members) {
    if (member.name.ends_with('/')) {
      zip_dir_add(archive, member.name.c_str(), 0);
    } else {
      zip_source_t* source = zip_source_buffer(archive, member.content.data(), member.content.size(), 0);
      zip_file_add(archive, member.name.c_str(), source, 0);
    }
  }
  EXPECT_EQ(zip_close(archive), 0);
  zip_stat_t whole;
  zip_source_stat(sink, &whole);
  std::string content(whole.size, '\0');
  zip_source_open(sink);
  EXPECT_EQ(zip_source_read(sink, content.data(), content.size()), static_cast<zip_int64_t>(content.size()));
  zip_source_close(sink);
  zip_source_free(sink);
  return content;
}

std::string safetensors(const std::string& header, const std::string& elements) {
  return number(header.size(), 8) + header + elements;
}

Result<ArrayReader> view(const std::string& content, const std::string& name = "test") {
  return ArrayReader::view(content.data(), content.size(), name);
}

void expect_message(const Status& status, StatusCode code, std::initializer_list<const char*> texts) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const char* text : texts)
    EXPECT_NE(status.message().find(text), std::string::npos) << text << ": " << status.message();
}

Status write(const std::string& path, const std::string& content) {
  return write_file_atomically(path, content.data(), content.size());
}

TEST(ArrayReader, ListsSafetensorsTypesThatAreNotRead) {
  const std::string header =
      R"({"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F4","shape":[5],"data_offsets":[3,6]},)"
      R"("c":{"dtype":"C64","shape":[1],"data_offsets":[6,14]},"d":{"dtype":"U64","shape":[1],"data_offsets":[14,22]},)"
      R"("e":{"dtype":"NEW7","shape":[9],"data_offsets":[22,24]},"w":{"dtype":"F32","shape":[2],"data_offsets":[24,32]},)"
      R"("__metadata__":{"k":"v"}})";
  const std::string content = safetensors(header, std::string(24, 'x') + as_string(iota_f32({2}).bytes));
  const auto file = view(content);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->kind(), FileKind::kSafetensors);
  EXPECT_EQ(file->metadata().at("k"), "v");
  const char* const types[] = {"F8_E4M3", "F4", "C64", "U64", "NEW7", "F32"};
  ASSERT_EQ(file->entries().size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(file->entries()[i].type, types[i]);
    EXPECT_EQ(file->entries()[i].dtype.has_value(), i == 5);
  }
  EXPECT_EQ(file->find("b")->shape, std::vector<int64_t>{5});
  EXPECT_EQ(file->find("b")->size_bytes, 3U);
  EXPECT_EQ(*file->read("w"), iota_f32({2}));
  expect_message(file->read("a").status(), StatusCode::kUnsupported, {"test: tensor 'a'", "F8_E4M3"});
  expect_message(file->read("z").status(), StatusCode::kInvalidArgument, {"test: no array is called 'z'"});
  expect_message(file->read_all().status(), StatusCode::kUnsupported, {"tensor 'a'"});
}

TEST(ArrayReader, ChecksSizesOfTypesThatAreNotRead) {
  const auto refused = [](const std::string& tensor, const char* text) {
    expect_message(view(safetensors("{\"a\":" + tensor + "}", "12345678")).status(), StatusCode::kInvalidFile, {text});
  };
  refused(R"({"dtype":"F8_E5M2","shape":[9],"data_offsets":[0,8]})", "shape (9,) of F8_E5M2 needs 9 bytes");
  refused(R"({"dtype":"F4","shape":[17],"data_offsets":[0,8]})", "shape (17,) of F4 needs 9 bytes");
  refused(R"({"dtype":"C64","shape":[2],"data_offsets":[0,8]})", "needs 16 bytes");
  refused(R"({"dtype":"F4","shape":[4611686018427387904,2],"data_offsets":[0,8]})", "2^63 or more");
  refused(R"({"dtype":"NEW7","shape":[2],"data_offsets":[0,9]})", "do not lie in the file's 8 bytes");
  refused(R"({"dtype":"NEW7","shape":[2],"data_offsets":[0,7]})", "the tensors end at 7");
}

TEST(ArrayReader, ListsNpzTypesThatAreNotRead) {
  const std::string good = as_string(*encode_npy(iota_f32({2, 2}), "out"));
  const std::string content =
      zip_of({{"folder/", ""},
              {"folder/w.npy", good},
              {"strings.npy", npy("'<U7'", "(2,)", std::string(56, 'x'))},
              {"objects.npy", npy("'|O'", "(2,)", "pickled")},
              {"complex.npy", npy("'<c8'", "(3,)", std::string(24, 'x'))},
              {"uint64.npy", npy("'<u8'", "()", std::string(8, 'x'))},
              {"dates.npy", npy("'<M8[ns]'", "(1,)", std::string(8, 'x'))},
              {"records.npy", npy("[('a', '<f4'), ('b', ('<i4', (2,)))]", "(1,)", "123456789012")},
              {"big.npy", npy("'>f4'", "(1,)", "1234")},
              {"bfloat.npy", npy("'<V2'", "(2,)", "1234")},
              {"lying.npy", npy("'<c8'", "(99,)", "1234")},
              {"README.txt", "text"}});
  const auto file = view(content);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->entries().size(), 11U);  // the folder is none
  for (const ArrayEntry& entry : file->entries()) {
    EXPECT_EQ(entry.dtype.has_value(), entry.name == "folder/w") << entry.name;
    if (!entry.dtype) expect_message(file->read(entry.name).status(), StatusCode::kUnsupported, {entry.name.c_str()});
  }
  EXPECT_EQ(*file->read("folder/w"), iota_f32({2, 2}));
  EXPECT_EQ(file->find("strings")->type, "<U7");
  EXPECT_EQ(file->find("strings")->shape, std::vector<int64_t>{2});
  EXPECT_EQ(file->find("records")->type, "[('a', '<f4'), ('b', ('<i4', (2,)))]");
  EXPECT_EQ(file->find("complex")->size_bytes, 24U);
  expect_message(file->read("bfloat").status(), StatusCode::kUnsupported, {"'<V2'", "bfloat16", "float32"});
  expect_message(file->read("lying").status(), StatusCode::kUnsupported, {"'<c8'", "(99,)", "needs 792 bytes"});
  expect_message(file->read_all().status(), StatusCode::kUnsupported, {"zip entry 'README.txt'"});
  expect_message(view(npy("'<V2'", "(2,)", "1234"))->read("").status(), StatusCode::kUnsupported, {"bfloat16"});
}

TEST(ArrayReader, ReadsTheDirectoryWithoutTheElements) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.safetensors");
  ASSERT_TRUE(save_safetensors(path, {{{"a", iota_f32({4})}, {"b", iota_f32({100})}}, {}}).ok());
  const auto file = ArrayReader::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file->read("a"), iota_f32({4}));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ(*file->read("a"), iota_f32({4}));
  expect_message(file->read("b").status(), StatusCode::kIo, {"became shorter"});
}

TEST(ArrayReader, ReadsPipesOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.file("pipe");
  const std::pair<FileKind, std::string> contents[] = {
      {FileKind::kNpy, as_string(*encode_npy(iota_f32({2}), "out"))},
      {FileKind::kNpz, as_string(*encode_npz({{"", iota_f32({2})}}, "out"))},
      {FileKind::kSafetensors, as_string(*encode_safetensors({{{"", iota_f32({2})}}, {}}, "out"))}};
  for (const auto& item : contents) {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    std::thread writer([&] { EXPECT_TRUE(write(path, item.second).ok()); });
    const auto file = ArrayReader::open(path);
    writer.join();
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->kind(), item.first);
    EXPECT_EQ(file->name(), path);
    EXPECT_EQ(*file->read(""), iota_f32({2}));
    std::filesystem::remove(path);
  }
}

TEST(ArrayReader, ListsGguf) {
  const std::string content = as_string(gguf_seed_file());
  const auto file = view(content);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_NE(file->gguf(), nullptr);
  EXPECT_EQ(file->kind(), FileKind::kGguf);
  EXPECT_EQ(file->entries().size(), std::size(kGgufSeedTensors));
  EXPECT_EQ(file->find("12")->type, "Q4_K");
  EXPECT_EQ(file->find("12")->dtype, Dtype::kF32);
  EXPECT_EQ(file->find("1")->dtype, Dtype::kF16);
  EXPECT_EQ(*file->read("12"), *file->gguf()->read("12"));
  EXPECT_EQ(file->gguf()->split_text(), "");
}

TEST(ArrayReader, NamesAMissingShardAndItsIndex) {
  const TemporaryFolder folder;
  const std::string index = folder.file("m.safetensors.index.json");
  ASSERT_TRUE(save_safetensors(folder.file("1.safetensors"), {{{"a", iota_f32({2})}}, {}}).ok());
  const auto content = R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}})";
  ASSERT_TRUE(write(index, content).ok());
  expect_message(ArrayReader::open(index).status(), StatusCode::kIo,
                 {"m.safetensors.index.json", "'2.safetensors'", "2 tensors such as 'b'", "No such file"});
  ASSERT_TRUE(write(folder.file("2.safetensors"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\n").ok());
  expect_message(ArrayReader::open(index).status(), StatusCode::kUnsupported,
                 {"index.json", "'2.safetensors'", "git lfs pull"});
  // A type that is not read spoils no other tensor.
  ASSERT_TRUE(
      write(folder.file("2.safetensors"), safetensors(R"({"b":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                                                      R"("c":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                                      "12345678"))
          .ok());
  const auto file = ArrayReader::open(index);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->kind(), FileKind::kSafetensorsIndex);
  EXPECT_EQ(*file->read("a"), iota_f32({2}));
  EXPECT_EQ(as_string(file->read("c")->bytes), "5678");
  expect_message(file->read("b").status(), StatusCode::kUnsupported, {"2.safetensors", "'b'", "F8_E4M3"});
}

TEST(FileKind, TellsWhatIsobitSaved) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.safetensors");
  const std::pair<const char*, FileKind> texts[] = {{R"({"format_version": 1, "grus": []})", FileKind::kGruModels},
                                                    {R"({"fp16_table": {"matrices": []}})", FileKind::kFp16Table},
                                                    {R"({"arrays": [], "matrices": {}})", FileKind::kLowBit},
                                                    {R"({"static_linears": []})", FileKind::kStaticLinear},
                                                    {R"({"static_convs": []})", FileKind::kStaticConv},
                                                    {R"({"x": {"grus": 1}, "y": "matrices"})", FileKind::kOtherSaved},
                                                    {R"(["grus"])", FileKind::kOtherSaved},
                                                    {R"({"grus": [)", FileKind::kOtherSaved},
                                                    {"", FileKind::kOtherSaved}};
  for (const auto& [text, kind] : texts) {
    ASSERT_TRUE(save_safetensors(path, {{{"a", iota_f32({2})}}, {{"isobit", text}}}).ok());
    EXPECT_EQ(*file_kind(path), kind) << text;
    EXPECT_EQ(ArrayReader::open(path)->kind(), kind) << text;
    EXPECT_TRUE(load_arrays(path).ok()) << text;
  }
  ASSERT_TRUE(save_safetensors(path, {{{"a", iota_f32({2})}}, {{"format", "pt"}}}).ok());
  EXPECT_EQ(*file_kind(path), FileKind::kSafetensors);
}

TEST(FileKind, RecognisesWhatPeopleGiveByMistake) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  std::string tar(512, '\0');
  tar.replace(0, 8, "file.npy").replace(257, 5, "ustar");
  const struct {
    std::string content;
    FileKind kind;
    const char* words[3];
  } cases[] = {
      {"", FileKind::kEmpty, {"is empty", "0 bytes", ""}},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n",
       FileKind::kGitLfsPointer,
       {"Git LFS", "git lfs pull", ""}},
      {zip_of({{"archive/data.pkl", "x"}, {"archive/data/0", "x"}}),
       FileKind::kPytorch,
       {"PyTorch checkpoint", "torch.load", "save_file"}},
      {"\x80\x02\x8a\x0al\xfc\x9c", FileKind::kPickle, {"Python pickle", "torch.load", ""}},
      {"\x89HDF\r\n\x1a\n....", FileKind::kHdf5, {"HDF5", "Keras", "numpy.savez"}},
      {zip_of({{"config.json", "{}"}, {"model.weights.h5", "x"}}),
       FileKind::kKeras,
       {"Keras model", "numpy.savez", ""}},
      {std::string("\x08\x08\x12\x07pytorch\x3a\0", 13), FileKind::kOnnx, {"ONNX", "without a GRU node", "none"}},
      {"\x08\x08\x12\x07pytorch", FileKind::kUnknown, {"neither npy", "", ""}},  // such as a SavedModel
      {std::string("\x1c\0\0\0TFL3....", 12), FileKind::kTfLite, {"TensorFlow Lite", "", ""}},
      {"\n<!DOCTYPE html><html>", FileKind::kHtml, {"HTML page", "download it again", ""}},
      {"<html lang=\"en\">", FileKind::kHtml, {"HTML page", "", ""}},
      {"{\"weight_map\": {}}", FileKind::kJson, {"JSON", ".safetensors.index.json", ""}},
      {tar, FileKind::kTar, {"tar archive", "unpack", ""}},
      {zip_of({{"README.txt", "x"}}), FileKind::kZip, {"'README.txt' is not an array", "", ""}},
      {"\x1f\x8b\x08\x08", FileKind::kCompressed, {"gzip", "uncompress", ""}},
      {"text", FileKind::kUnknown, {"neither npy nor npz nor safetensors nor GGUF nor ONNX", "4 bytes", ""}},
  };
  for (const auto& c : cases) {
    ASSERT_TRUE(write(path, c.content).ok());
    const auto kind = file_kind(path);
    ASSERT_TRUE(kind.ok()) << kind.status().message();
    EXPECT_EQ(*kind, c.kind) << to_string(*kind);
    const Status refused = ArrayReader::open(path).status();
    EXPECT_EQ(refused.message().rfind(path + ": ", 0), 0U) << refused.message();
    for (const char* word : c.words) EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
    EXPECT_EQ(load_arrays(path).status().message(), refused.message());
  }
  ASSERT_TRUE(save_npz(path, {}).ok());
  EXPECT_EQ(*file_kind(path), FileKind::kNpz);
  EXPECT_EQ(file_kind(folder.file("missing")).status().code(), StatusCode::kIo);
}

}  // namespace
}  // namespace isobit
