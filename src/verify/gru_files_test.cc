// SPDX-License-Identifier: Apache-2.0
#include "isobit/gru_files.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "gru/random_model.h"
#include "io/test_files.h"

namespace isobit {
namespace {

constexpr int64_t kInputs = 2, kHidden = 3;

GruWeights some_weights() {
  Random random(1);
  GruWeights weights;
  weights.layers.resize(1);
  GruLayerWeights& layer = weights.layers[0];
  layer.input_size = kInputs;
  layer.hidden_size = kHidden;
  const auto values = [&](int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = static_cast<float>(random.between(-100, 100)) / 100;
    return out;
  };
  layer.W = values(3 * kHidden * kInputs);
  layer.R = values(3 * kHidden * kHidden);
  layer.bw = values(3 * kHidden);
  layer.br = values(3 * kHidden);
  return weights;
}

Array floats(std::vector<int64_t> shape, int64_t first = 0) {
  Array array = Array::zeros(Dtype::kF32, std::move(shape));
  for (int64_t i = 0; i < array.size(); ++i) array.data<float>()[i] = static_cast<float>((i + first) % 17) / 8 - 1;
  return array;
}

Sequences sequences(int64_t steps, int64_t batch, int64_t first, std::vector<int64_t> lengths = {}) {
  Sequences out;
  out.steps = steps;
  out.batch = batch;
  out.x = floats({steps, batch, kInputs}, first).to_float();
  out.lengths = std::move(lengths);
  return out;
}

GruModel model_of_bits(int32_t bits) {
  Random random(3);
  RandomShape shape;
  shape.input = kInputs;
  shape.hidden = kHidden;
  shape.h_bits = bits;
  Result<GruModel> model = random_model(random, shape);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

/// A calibrator that observed the files of a folder, and the model that it gives, as bytes.
std::string calibrated(const std::string& path, const ObserveOptions& options, ObservedCount& count,
                       const std::string& saved, const std::string& lengths = {}) {
  FileClaims claims;
  SequenceOptions of_data;
  of_data.lengths = lengths;
  auto calibrator = GruCalibrator::create(some_weights());
  const auto files = SequenceFiles::open({path}, of_data, sequence_sizes(calibrator->weights()), claims);
  EXPECT_TRUE(files.ok()) << files.status().message();
  std::vector<std::string> warnings;
  const auto observed = observe_files(*files, *calibrator, options, warnings);
  EXPECT_TRUE(observed.ok()) << observed.status().message();
  count = *observed;
  EXPECT_TRUE(calibrator->finish({})->save(saved).ok());
  const auto bytes = read_file(saved);
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

TEST(ApplyLayer, PrefixesAndArraysWithNamesOfTheirOwn) {
  GruLoadOptions options;
  EXPECT_TRUE(apply_layer("enc=a,b,c", options).ok());
  EXPECT_TRUE(apply_layer("enc_l1_reverse=d,e,f,g", options).ok());
  EXPECT_EQ(options.prefix, "enc");
  EXPECT_EQ(options.arrays, (std::map<std::string, std::string>{{"enc.weight_ih_l0", "a"},
                                                                {"enc.weight_hh_l0", "b"},
                                                                {"enc.bias_ih_l0", "c"},
                                                                {"enc.weight_ih_l1_reverse", "d"},
                                                                {"enc.weight_hh_l1_reverse", "e"},
                                                                {"enc.bias_ih_l1_reverse", "f"},
                                                                {"enc.bias_hh_l1_reverse", "g"}}));
  EXPECT_EQ(apply_layer("enc_l0=x,y", options).message(), "layer enc_l0=x,y: layer l0 is given twice");
  EXPECT_EQ(apply_layer("dec", options).message(), "layer dec: another one names enc");
  for (const char* wrong : {"enc=a", "enc=a,,c", "=a,b", "enc=a,b,c,d,e", "enc="}) {
    GruLoadOptions fresh;
    EXPECT_EQ(
        apply_layer(wrong, fresh).message(),
        "layer " + std::string(wrong) + ": expected NAME=W,R, NAME=W,R,BW,BR, or NAME=W,R,B with both biases in B");
  }
}

TEST(ObserveFiles, SequencesGiveTheSameTogetherOrAlone) {
  const TemporaryFolder folder, models;
  const Array x = floats({6, 100, kInputs});
  ASSERT_TRUE(save_npy(folder.file("together.npy"), x).ok());
  std::vector<int32_t> lengths;
  std::map<std::string, Array> alone;
  for (int32_t n = 0; n < 100; ++n) {
    lengths.push_back(n % 7);
    Array one = Array::zeros(Dtype::kF32, {n % 7, kInputs});
    for (int64_t t = 0; t < n % 7; ++t)
      for (int64_t c = 0; c < kInputs; ++c)
        one.data<float>()[t * kInputs + c] = x.data<float>()[(t * 100 + n) * kInputs + c];
    alone.emplace("s" + std::to_string(n), std::move(one));
  }
  ASSERT_TRUE(save_npz(folder.file("alone.npz"), alone).ok());
  ASSERT_TRUE(save_npy(models.file("lengths.npy"), Array::copy_of(lengths.data(), {100})).ok());
  ThreadPool pool(2);
  ObservedCount together, single;
  std::vector<double> shares;
  ObserveOptions options;
  options.progress = [&](double share) { shares.push_back(share); };
  const std::string expected =
      calibrated(folder.file("together.npy"), options, together, models.file("a"), models.file("lengths.npy"));
  EXPECT_EQ(expected, calibrated(folder.file("alone.npz"), {.pool = &pool}, single, models.file("b")));
  EXPECT_EQ(together.steps, 14 * 21 + 0 + 1);
  EXPECT_EQ(together.steps, single.steps);
  EXPECT_EQ(together.sequences, 100);
  EXPECT_EQ(single.sequences, 100);
  EXPECT_EQ(shares, (std::vector<double>{0, 0.64, 1})) << "the start, 64 sequences, all";
}

TEST(ObserveFiles, RefusesDataWithoutAStep) {
  const TemporaryFolder folder;
  ASSERT_TRUE(save_npy(folder.file("none.npy"), floats({0, kInputs})).ok());
  auto calibrator = GruCalibrator::create(some_weights());
  FileClaims claims;
  std::vector<std::string> warnings;
  const auto files = SequenceFiles::open({folder.file("none.npy")}, {}, sequence_sizes(calibrator->weights()), claims);
  EXPECT_EQ(observe_files(*files, *calibrator, {}, warnings).status().message(),
            folder.file("none.npy") + ": the data has no time step; ranges need at least one");
}

TEST(CompareFiles, IsAComparisonOnTheSequencesInTheirOrder) {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.npz");
  ASSERT_TRUE(save_npz(path, {{"one", floats({5, kInputs})}, {"two", floats({3, 2, kInputs}, 4)}}).ok());
  const GruWeights weights = some_weights();
  GruCalibrator calibrator = GruCalibrator::create(weights).value();
  const Sequences one = sequences(5, 1, 0), two = sequences(3, 2, 4);
  ASSERT_TRUE(calibrator.observe(one.x, 5, 1).ok());
  const GruModel model = calibrator.finish({}).value();
  FileClaims claims;
  const SequenceFiles files = SequenceFiles::open({path}, {}, sequence_sizes(weights), claims).value();
  std::vector<std::string> names;
  const Result<GruComparisonReport> report = compare_files(files, weights, model, {}, names);
  ASSERT_TRUE(report.ok()) << report.status().message();
  const std::string label = path + ": array ";
  EXPECT_EQ(names, (std::vector<std::string>{label + "\"one\"", label + "\"two\", sequence 0",
                                             label + "\"two\", sequence 1"}));
  GruComparison alone = GruComparison::create(weights, model).value();
  ASSERT_TRUE(alone.add(view_of(one)).ok());
  ASSERT_TRUE(alone.add(view_of(two)).ok());
  const GruComparisonReport expected = alone.finish().value();
  EXPECT_EQ(report->steps, 11);
  ASSERT_EQ(report->tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < expected.tensors.size(); ++i)
    EXPECT_EQ(report->tensors[i].sqnr_db, expected.tensors[i].sqnr_db);
  GruWeights other = weights;
  other.layers[0].input_size = 0;
  EXPECT_EQ(compare_files(files, other, model, {}, names).status().code(), StatusCode::kInvalidArgument);
}

TEST(LastTenth, IsRoundedUpAndLeavesOutEmptyOnes) {
  const SequenceSizes sizes = sequence_sizes(some_weights());
  LastTenth last;
  last.add(sequences(4, 1, 0), sizes);
  EXPECT_EQ(last.size(), 1);
  last.add(sequences(4, 9, 0), sizes);
  EXPECT_EQ(last.size(), 1);
  last.add(sequences(4, 3, 0, {2, 0, 3}), sizes);
  EXPECT_EQ(last.size(), 2);
  auto validation = GruValidation::create(some_weights());
  ASSERT_TRUE(last.add_to(*validation).ok());
  EXPECT_EQ(validation->sequences(), 2);
  EXPECT_EQ(validation->steps(), 5);
}

TEST(SeenSequences, CountsThoseThatCameBefore) {
  const SequenceSizes sizes = sequence_sizes(some_weights());
  SeenSequences seen;
  seen.add(sequences(4, 3, 0), sizes);
  EXPECT_EQ(seen.count(sequences(4, 3, 0), sizes), 3);
  EXPECT_EQ(seen.count(sequences(4, 3, 5), sizes), 0);
  EXPECT_EQ(seen.count(sequences(4, 3, 0, {4, 2, 0}), sizes), 1) << "a part is another sequence, an empty one is none";
}

TEST(States, AreSavedAndLoaded) {
  const TemporaryFolder folder;
  for (const int32_t bits : {8, 12}) {
    const GruModel model = model_of_bits(bits);
    GruState state = model.initial_state(2);
    state.layer(0)[0] = std::byte{1};
    ASSERT_TRUE(save_state(folder.file("s.npz"), model, state).ok());
    std::vector<std::string> warnings;
    const auto loaded = load_state(folder.file("s.npz"), model, 2, "--state", warnings);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_TRUE(std::equal(loaded->layer(0).begin(), loaded->layer(0).end(), state.layer(0).begin()));
    EXPECT_EQ(load_state(folder.file("s.npz"), model, 3, "--state", warnings).status().message(),
              "--state " + folder.file("s.npz") + ": array \"h0\" has the shape [2, 3]; expected [N, H] = [3, 3]");
  }
}

TEST(States, FloatsAreQuantisedAndThoseOutsideCounted) {
  const TemporaryFolder folder;
  const GruModel model = model_of_bits(8);
  Array h = Array::zeros(Dtype::kF32, {1, 2, kHidden});
  ASSERT_TRUE(save_npy(folder.file("h.npy"), h).ok());
  std::vector<std::string> warnings;
  ASSERT_TRUE(load_state(folder.file("h.npy"), model, 2, "h0", warnings).ok());
  EXPECT_TRUE(warnings.empty());
  for (int64_t i = 0; i < 3; ++i) h.data<float>()[i] = 1000;
  ASSERT_TRUE(save_npy(folder.file("h.npy"), h).ok());
  ASSERT_TRUE(load_state(folder.file("h.npy"), model, 2, "h0", warnings).ok());
  EXPECT_EQ(warnings, (std::vector<std::string>{"50 % of the values of h0 " + folder.file("h.npy") +
                                                " lie outside the range of h and are clipped"}));
  EXPECT_EQ(
      load_state(folder.file("h.npy"), model, 1, "h0", warnings).status().message(),
      "h0 " + folder.file("h.npy") + " has the shape [1, 2, 3]; expected [layers * directions, N, H] = [1, 1, 3]");
}

TEST(CheckCodes, NamesTypeAndTheCodeOutside) {
  Grid grid;
  grid.bits = 6;
  Array codes = Array::zeros(Dtype::kS8, {2, 2});
  EXPECT_TRUE(check_codes(codes, grid, "x").ok());
  codes.data<int8_t>()[2] = 32;
  EXPECT_EQ(check_codes(codes, grid, "x").message(), "x: code 32 at flat index 2 is outside its grid, -32 to 31");
  EXPECT_EQ(check_codes(floats({1}), grid, "x").message(), "x has the dtype f32; the model's codes there are s8");
}

TEST(ZoneoutMask, IsCheckedAndTurned) {
  const TemporaryFolder folder;
  const GruModel model = model_of_bits(8);
  Array mask = Array::zeros(Dtype::kU8, {2, 4, kHidden});
  mask.data<uint8_t>()[1 * 4 * kHidden + 2 * kHidden] = 1;  // sequence 1 at step 2 of [N, T, H]
  ASSERT_TRUE(save_npy(folder.file("m.npy"), mask).ok());
  const auto file = Companion::load("mask", folder.file("m.npy"));
  const auto turned = zoneout_mask(*file, "", {4, 2, false}, model, true);
  ASSERT_TRUE(turned.ok()) << turned.status().message();
  EXPECT_EQ((*turned)[(2 * 2 + 1) * kHidden], 1);
  EXPECT_EQ(zoneout_mask(*file, "", {4, 2, false}, model).status().message(),
            "mask " + folder.file("m.npy") +
                " is u8 [2, 4, 3]; expected u8 or bool [4, 2, 3]: 1 takes the new state, 0 keeps the old one");
  mask.data<uint8_t>()[0] = 2;
  ASSERT_TRUE(save_npy(folder.file("m.npy"), mask).ok());
  EXPECT_EQ(zoneout_mask(*Companion::load("mask", folder.file("m.npy")), "", {2, 4, false}, model).status().message(),
            "mask " + folder.file("m.npy") + ": value 2; expected 0 (keep the state) or 1");
  EXPECT_TRUE(zoneout_mask(*Companion::load("mask", ""), "", {4, 2, false}, model)->empty());
}

}  // namespace
}  // namespace isobit
