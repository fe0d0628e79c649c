// SPDX-License-Identifier: Apache-2.0
#include "isobit/sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "io/test_files.h"

namespace isobit {
namespace {

template <typename T>
Array integers(const std::vector<T>& values) {
  return Array::copy_of(values.data(), {std::ssize(values)});
}

void save(const std::string& path, const std::map<std::string, Array>& arrays) {
  ASSERT_TRUE(save_npz(path, arrays).ok());
}

TEST(FindDataFiles, FilesFoldersAndPatterns) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("in"));
  std::filesystem::create_directory(folder.file("empty"));
  for (const char* name : {"in/b.npy", "in/a.npz", "in/c.txt", "z.safetensors"})
    ASSERT_TRUE(write_file_atomically(folder.file(name), "", 0).ok());
  const auto all = find_data_files({folder.file("z.safetensors"), folder.file("in")});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(*all,
            (std::vector<std::string>{folder.file("z.safetensors"), folder.file("in/a.npz"), folder.file("in/b.npy")}));
  EXPECT_EQ(*find_data_files({folder.file("in/[ab].*")}),
            (std::vector<std::string>{folder.file("in/a.npz"), folder.file("in/b.npy")}));
  EXPECT_EQ(find_data_files({folder.file("x.npy")}).status().message(),
            folder.file("x.npy") + ": no such file or folder");
  EXPECT_EQ(find_data_files({folder.file("*.npz")}).status().message(),
            folder.file("*.npz") + ": the pattern matches no file");
  EXPECT_EQ(find_data_files({folder.file("empty")}).status().message(),
            folder.file("empty") + ": the folder holds no .npy, .npz or .safetensors file");
}

TEST(SequenceShape, TakesTwoOrThreeDimensions) {
  const auto shape = sequence_shape(iota_f32({4, 3, 2}), 2, "x");
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->steps, 4);
  EXPECT_EQ(shape->batch, 3);
  EXPECT_FALSE(shape->single);
  EXPECT_EQ(sequence_shape(iota_f32({4, 3, 2}), 2, "x", true)->steps, 3);
  EXPECT_TRUE(sequence_shape(iota_f32({4, 2}), 2, "x")->single);
  EXPECT_EQ(sequence_shape(iota_f32({4, 3}), 2, "x").status().message(),
            "x has the shape [4, 3]; the model takes [T, 2] or [T, N, 2]");
  EXPECT_EQ(sequence_shape(iota_f32({2}), 2, "x", true).status().message(),
            "x has the shape [2]; the model takes [T, 2] or [N, T, 2]");
}

TEST(SequenceShape, PlacesAndSwaps) {
  const SequenceShape shape{4, 3, false};
  EXPECT_EQ(place_text(2 * 6 + 1 * 2 + 1, shape, 2, false), "[2, 1, 1]");
  EXPECT_EQ(place_text(2 * 6 + 1 * 2 + 1, shape, 2, true), "[1, 2, 1]");
  EXPECT_EQ(place_text(5, {4, 1, true}, 2, true), "[2, 1]");
  const Array array = iota_f32({2, 3, 2});
  const Array swapped = swap_batch_and_time(array);
  EXPECT_EQ(swapped.shape, (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(swapped.data<float>()[2], 6.0f);  // [0, 1, 0] is [1, 0, 0]
  EXPECT_EQ(swap_batch_and_time(swapped), array);
  EXPECT_EQ(swap_batch_and_time(iota_f32({0, 3, 2})).shape, (std::vector<int64_t>{3, 0, 2}));
}

TEST(Reordered, EveryOrderIsTheDefinition) {
  const Array array = iota_f32({2, 3, 4, 5});
  std::vector<size_t> order = {0, 1, 2, 3};
  do {
    const Array out = reordered(array, order);
    for (size_t i = 0; i < 4; ++i) ASSERT_EQ(out.shape[i], array.shape[order[i]]);
    std::vector<int64_t> at(4);
    for (int64_t flat = 0; flat < array.size(); ++flat) {
      int64_t rest = flat, to = 0;
      for (size_t i = 4; i-- > 0; rest /= array.shape[i]) at[i] = rest % array.shape[i];
      for (size_t i = 0; i < 4; ++i) to = to * out.shape[i] + at[order[i]];
      ASSERT_EQ(out.data<float>()[to], array.data<float>()[flat]);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(reordered(iota_f32({2, 0, 3}), std::vector<size_t>{2, 1, 0}).shape, (std::vector<int64_t>{3, 0, 2}));
}

TEST(LayoutHint, AtEightTimesAsManySequencesAsSteps) {
  EXPECT_EQ(layout_hint({2, 16, false}, "x", "batch_first"),
            "x is taken as 2 steps of 16 sequences, [T, N, C]; where it is [N, T, C], give batch_first");
  EXPECT_EQ(layout_hint({2, 15, false}, "x", "batch_first"), "");
  EXPECT_EQ(layout_hint({0, 15, false}, "x", "batch_first"), "");
  EXPECT_EQ(layout_hint({1, 1, true}, "x", "batch_first"), "");
}

TEST(ClippedInputs, PaddingDoesNotCount) {
  Grid grid;
  grid.bits = 4;
  const std::vector<float> x = {0, 9, 1, 1, -9, 7.4f, 99, 99, 7.6f, 99, 99, 99};  // [3, 2, 2], on codes -8 to 7
  ClippedInputs all, cut;
  all.add(grid, x, 2, {});
  EXPECT_EQ(all.clipped, 8);
  EXPECT_EQ(all.values, 12);
  cut.add(grid, x, 2, std::vector<int64_t>{2, 1});
  EXPECT_EQ(cut.clipped, 2);
  EXPECT_EQ(cut.values, 6);
  cut.add(grid, x, 2, std::vector<int64_t>{0, 0});
  cut.add(grid, {}, 2, std::vector<int64_t>{0, 0});
  EXPECT_EQ(cut.values, 6);
}

TEST(Companion, FindsByNameOrTheOnlyOne) {
  const TemporaryFolder folder;
  save(folder.file("many.npz"), {{"a", integers<int64_t>({1, 2})}, {"b", integers<uint8_t>({3, 0})}});
  const auto many = Companion::load("lengths", folder.file("many.npz"));
  ASSERT_TRUE(many.ok());
  const SequenceShape shape{3, 2, false};
  EXPECT_EQ(*many->lengths("a", shape), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*many->lengths("b", shape), (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(many->lengths("c", shape).status().message(),
            "lengths " + folder.file("many.npz") + ": no array \"c\", as the data has one");
  EXPECT_EQ(many->lengths("b", {2, 2, false}).status().message(),
            "lengths " + folder.file("many.npz") + ": array \"b\": length 3 of sequence 0; expected 0 to T = 2");
  EXPECT_EQ(many->lengths("b", {3, 4, false}).status().message(),
            "lengths " + folder.file("many.npz") + ": array \"b\" is u8 [2]; expected integers [N] = [4]");
  ASSERT_TRUE(save_npy(folder.file("one.npy"), integers<int32_t>({2, 1})).ok());
  EXPECT_EQ(*Companion::load("lengths", folder.file("one.npy"))->lengths("any", shape), (std::vector<int64_t>{2, 1}));
  const auto none = Companion::load("lengths", "");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  EXPECT_TRUE(none->lengths("a", shape)->empty());
}

class SequenceFilesTest : public ::testing::Test {
 protected:
  Result<SequenceFiles> open(const SequenceOptions& options = {}) {
    FileClaims claims;
    return SequenceFiles::open({folder_.file("")}, options, {2, 1, 5}, claims);
  }
  TemporaryFolder folder_;
};

TEST_F(SequenceFilesTest, ShowsArraysInOrderWithWhatBelongsToThem) {
  save(folder_.file("a.npz"), {{"p", iota_f32({4, 3, 2})}, {"q", iota_f32({3, 2})}});
  ASSERT_TRUE(save_npy(folder_.file("b.npy"), iota_f32({2, 2})).ok());
  const TemporaryFolder beside;
  save(beside.file("lengths.npz"),
       {{"p", integers<int32_t>({4, 0, 2})}, {"q", integers<int32_t>({1})}, {"", integers<int32_t>({2})}});
  SequenceOptions options;
  options.lengths = beside.file("lengths.npz");
  const auto files = open(options);
  ASSERT_TRUE(files.ok()) << files.status().message();
  std::vector<std::string> names;
  std::vector<double> done;
  std::vector<std::string> warnings;
  int64_t steps = 0;
  const auto use = [&](const Sequences& data) -> Status {
    names.push_back(data.array);
    done.push_back(data.done);
    steps += data.total_steps();
    return {};
  };
  ASSERT_TRUE(files->for_each(use, warnings).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"p", "q", ""}));
  EXPECT_EQ(done, (std::vector<double>{0, 0.25, 0.5}));
  EXPECT_EQ(steps, 6 + 1 + 2);
  EXPECT_TRUE(warnings.empty());
  const auto extents = files->extents();
  ASSERT_TRUE(extents.ok());
  EXPECT_EQ(extents->sequences, 5);
  EXPECT_EQ(extents->steps, 9);
}

TEST_F(SequenceFilesTest, BatchFirstIsTurned) {
  ASSERT_TRUE(save_npy(folder_.file("a.npy"), iota_f32({3, 4, 2})).ok());
  SequenceOptions options;
  options.batch_first = true;
  std::vector<std::string> warnings;
  ASSERT_TRUE(open(options)
                  ->for_each(
                      [](const Sequences& data) -> Status {
                        EXPECT_EQ(data.steps, 4);
                        EXPECT_EQ(data.batch, 3);
                        EXPECT_EQ(data.x[2], 8.0f);  // sequence 1 at step 0
                        return {};
                      },
                      warnings)
                  .ok());
}

TEST_F(SequenceFilesTest, ErrorsNameArgumentFileArrayAndPlace) {
  std::vector<std::string> warnings;
  const auto message = [&](const SequenceOptions& options) {
    const auto files = open(options);
    if (!files.ok()) return files.status().message();
    return files->for_each([](const Sequences&) { return Status(); }, warnings).message();
  };
  Array x = iota_f32({4, 3, 2});
  save(folder_.file("a.npz"), {{"x", x}});
  const TemporaryFolder beside;
  ASSERT_TRUE(save_npy(beside.file("h0.npy"), iota_f32({1, 3, 4})).ok());
  SequenceOptions options;
  options.h0 = beside.file("h0.npy");
  options.h0_name = "--state";
  EXPECT_EQ(message(options), "--state " + beside.file("h0.npy") +
                                  " is f32 [1, 3, 4]; expected floats, not codes, [layers * directions, N, H] = "
                                  "[1, 3, 5]");
  Array h0 = iota_f32({1, 3, 5});
  h0.data<float>()[7] = NAN;
  ASSERT_TRUE(save_npy(beside.file("h0.npy"), h0).ok());
  EXPECT_EQ(message(options),
            "--state " + beside.file("h0.npy") + ": value nan at [0, 1, 2]; every value must be finite");
  x.data<float>()[9] = INFINITY;
  save(folder_.file("a.npz"), {{"x", x}});
  EXPECT_EQ(message({}), folder_.file("a.npz") + ": array \"x\": value inf at [1, 1, 1]; every value must be finite");
  save(folder_.file("a.npz"), {{"x", iota_f32({4, 3, 2})}});
  const auto refused = open()->for_each([](const Sequences&) { return Status(StatusCode::kIo, "full"); }, warnings);
  EXPECT_EQ(refused.message(), folder_.file("a.npz") + ": array \"x\": full");
  ASSERT_TRUE(save_npy(folder_.file("b.npy"), iota_f32({2, 2})).ok());
  options.one_file = true;
  EXPECT_EQ(message(options),
            "--state " + beside.file("h0.npy") + ": belongs to one file of data, but data names 2 files");
}

TEST(CheckOutput, RefusesWhatCannotBecomeTheFile) {
  const TemporaryFolder folder;
  FileClaims claims;
  const auto message = [&](const std::string& path, OutputKind kind) {
    return check_output(path, "-o", kind, claims).message();
  };
  EXPECT_EQ(message(folder.file("y.npy"), OutputKind::kArrays), "");
  EXPECT_NE(message(folder.file("y.npy"), OutputKind::kArrays), "") << "claimed twice";
  EXPECT_EQ(message("", OutputKind::kArray), "-o must not be empty");
  EXPECT_EQ(message(folder.file(""), OutputKind::kArray), "-o " + folder.file("") + ": is a folder; give a file name");
  EXPECT_EQ(message(folder.file("m.npz"), OutputKind::kSafetensors),
            "-o " + folder.file("m.npz") +
                ": what is written is safetensors, so the name must end in .safetensors or .st, or have no ending");
  EXPECT_EQ(message(folder.file("no/m.st"), OutputKind::kSafetensors),
            "-o " + folder.file("no/m.st") + ": there is no folder " + folder.file("no") + "; create it first");
  EXPECT_EQ(message(folder.file("model.v2"), OutputKind::kSafetensors), "");
}

}  // namespace
}  // namespace isobit
