// SPDX-License-Identifier: Apache-2.0
#include "isobit/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "gru/random_model.h"
#include "verify/conv.h"
#include "verify/gru.h"
#include "verify/linear.h"
#include "verify/operations.h"

namespace isobit {
namespace {

GruModel some_model(int32_t directions = 1) {
  Random random(3);
  RandomShape shape;
  shape.input = 5;
  shape.hidden = 7;
  shape.directions = directions;
  Result<GruModel> model = random_model(random, shape);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

/// The reference with one of its bytes changed, where there are any.
Candidate<GruRun> faulty(const std::string& name, const std::function<void(RunOutput&)>& change) {
  VerifyKernel report;
  report.name = name;
  report.path = "cuda";
  return {report, [change](const GruCase& c) -> Result<std::optional<RunOutput>> {
            RunOutput out = c.expected;
            change(out);
            return std::optional(std::move(out));
          }};
}

TEST(VerifyKernels, OperationsByName) {
  EXPECT_EQ(verify_operations(), (std::vector<std::string_view>{"fp16_table", "gru", "linear", "conv"}));
  const Status unknown = verify_kernels({.operation = "grus"}).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.message(),
            "operation grus: expected fp16_table, gru, linear or conv; nearest: gru; softmax belongs to fp16_table");
  const auto report = verify_kernels({.operation = "gru", .outputs = 1000});
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_FALSE(report->kernels.empty());
  for (const VerifyKernel& kernel : report->kernels) {
    EXPECT_EQ(kernel.name, "gru_" + kernel.path);
    EXPECT_GE(kernel.outputs_compared, 1000u) << kernel.name;
    EXPECT_EQ(kernel.different, 0u) << kernel.first_difference;
  }
}

TEST(VerifyKernels, ProgressGoesUpToOne) {
  std::vector<double> shares;
  VerifyOptions options;
  options.outputs = 1000;
  options.progress = [&](double share) { shares.push_back(share); };
  ASSERT_TRUE(verify_kernels(options).ok());
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_NEAR(shares.back(), 1.0, 1e-9);
}

TEST(VerifyKernels, NamesRequiredPathsThatWereNotCompared) {
  VerifyOptions options{.operation = "gru", .outputs = 100};
  options.required = {"scalar", "cuda", "reference", "sse9"};
  const auto report = verify_kernels(options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->missing, (std::vector<std::string>{"cuda", "sse9"}));
}

/// A device answers for itself alone; an operation without a kernel of a path is not asked for it.
TEST(VerifyKernels, AsksOnlyThoseThatHaveTheKernel) {
  VerifyReport report;
  VerifyOptions options;
  options.required = {"amx", "cuda"};
  EXPECT_EQ(missing_paths(report, options, true, {}), (std::vector<std::string>{"cuda"}));
  EXPECT_EQ(missing_paths(report, options, false, {}), (std::vector<std::string>{"amx", "cuda"}));
  EXPECT_EQ(missing_paths(report, options, false, [](CpuPath path) { return path != CpuPath::kAmx; }),
            (std::vector<std::string>{"cuda"}));
  report.kernels.emplace_back();
  report.kernels.back().path = "cuda";
  EXPECT_EQ(missing_paths(report, options, true, {}), (std::vector<std::string>{"cuda"})) << "nothing was compared";
  report.kernels.back().outputs_compared = 1;
  EXPECT_TRUE(missing_paths(report, options, true, {}).empty());
}

TEST(VerifyKernels, RefusesWhatADeviceDoesNotHave) {
  const VerifyOperation rows[] = {{"gru", verify_gru, {}, {}}, {"linear", {}, {}, {}}};
  EXPECT_EQ(verify_with(rows, {.operation = "linear"}, true).status().message(),
            "operation linear: has no kernels on a device");
}

/// A kernel that takes the CPU's results and changes something.
template <typename Run, typename Change>
Candidate<Run> changed_run(const std::string& name, Run run, Change change) {
  VerifyKernel report;
  report.name = name;
  report.path = "cuda";
  return {report, [run, change](auto&&... arguments) -> Result<bool> {
            ISOBIT_RETURN_IF_ERROR(run(arguments...).status());
            change(arguments...);
            return true;
          }};
}
Candidate<LinearRun> changed(const std::string& name,
                             const std::function<void(const LinearCase&, LinearBuffers&)>& change) {
  return changed_run(name, linear_run({}), change);
}

TEST(VerifyLinear, ADeviceIsComparedWithTheCpu) {
  for (const bool on_device : {false, true}) {
    LinearCandidates candidates{.on_device = on_device};
    const auto flip = [](const LinearCase&, LinearBuffers& buffers) { buffers.y(0, 1).back() ^= std::byte{1}; };
    const auto beside = [](const LinearCase&, LinearBuffers& buffers) { buffers.bytes().back() = std::byte{1}; };
    const auto after_first_call = [](const LinearCase& c, LinearBuffers& buffers) {
      if (c.calls.size() > 1) buffers.y(0, 1).front() ^= std::byte{1};
    };
    const auto unclamped = [](const LinearCase& c, LinearBuffers& buffers) {
      LinearCase without = c;
      without.clamp = {};
      ASSERT_TRUE(linear_run({})(without, buffers).ok());
    };
    candidates.int8 = {changed("same", [](const LinearCase&, LinearBuffers&) {}), changed("flip", flip),
                       changed("beside", beside), changed("unclamped", unclamped)};
    candidates.floats = {changed("same", [](const LinearCase&, LinearBuffers&) {}),
                         changed("after_first_call", after_first_call), changed("beside", beside),
                         changed("unclamped", unclamped)};
    const auto report = verify_linear_with(candidates, {.outputs = on_device ? 500'000u : 50'000u, .seed = 3});
    ASSERT_TRUE(report.ok()) << report.status().message();
    ASSERT_EQ(report->kernels.size(), 8u);
    for (const VerifyKernel& kernel : report->kernels) {
      // On a device the four kernels of an operation share them, here equally.
      EXPECT_GE(kernel.outputs_compared, on_device ? 500'000u / 4 : 50'000u) << kernel.name;
      EXPECT_EQ(kernel.different == 0, kernel.name == "same") << kernel.name << ": " << kernel.first_difference;
    }
    const std::string first = report->kernels[1].first_difference;
    EXPECT_EQ(first.find("seed 3, layer 0, M="), 0u) << first;
    EXPECT_NE(first.find("the reference gives"), std::string::npos) << first;  // of the first layer in any case
    uint64_t by_path = 0;
    for (const auto& [name, outputs] : report->expected_by) {
      EXPECT_EQ(name, to_string(*default_cpu_path()));
      by_path += outputs;
    }
    EXPECT_EQ(by_path > 0, on_device && *default_cpu_path() != CpuPath::kReference);
  }
}

TEST(VerifyLinear, AnErrorNamesTheLayerAndTheKernel) {
  Candidate<LinearRun> broken = changed("broken", [](const LinearCase&, LinearBuffers&) {});
  broken.run = [](const LinearCase&, LinearBuffers&) -> Result<bool> { return Status(StatusCode::kIo, "no memory"); };
  for (const bool floats : {false, true}) {
    LinearCandidates candidates;
    (floats ? candidates.floats : candidates.int8).push_back(broken);
    const std::string message = verify_linear_with(candidates, {.outputs = 1}).status().message();
    EXPECT_EQ(message.find("seed 1, layer 0, M="), 0u) << message;
    EXPECT_TRUE(message.ends_with(", broken: no memory")) << message;
  }
}

TEST(VerifyConv, EveryKernelOfThisMachine) {
  std::vector<std::string> expected;
  const auto add = [&](const std::string& name, std::span<const LinearLayerKernel> rows, std::string_view operation) {
    for (const LinearLayerKernel& row : rows)
      if (row.operation == operation && row.path != CpuPath::kReference && cpu_can_run(row.path))
        expected.push_back(name + "_" + std::string(to_string(row.path)));
  };
  add("conv_static", static_conv_kernels(), "conv_static");
  add("conv_int8", linear_layer_kernels(), "linear_int8");
  add("conv_int8_per_image", static_conv_kernels(), "conv_static");
  add("conv_float", linear_layer_kernels(), "linear_float");
  const auto report = verify_kernels({.operation = "conv", .outputs = 20'000, .required = {"scalar"}});
  ASSERT_TRUE(report.ok()) << report.status().message();
  std::vector<std::string> names;
  for (const VerifyKernel& kernel : report->kernels) {
    names.push_back(kernel.name);
    EXPECT_TRUE(kernel.name.ends_with("_" + kernel.path)) << kernel.name;
    EXPECT_GE(kernel.outputs_compared, 20'000u) << kernel.name;
    EXPECT_EQ(kernel.different, 0u) << kernel.name << ": " << kernel.first_difference;
  }
  EXPECT_EQ(names, expected);
  EXPECT_TRUE(report->missing.empty());
  EXPECT_TRUE(report->expected_by.empty());
}

TEST(VerifyConv, ADeviceIsComparedWithTheCpu) {
  using Calls = std::span<const int64_t>;
  const auto of_floats = [](const std::string& name, auto change) { return changed_run(name, conv_run({}), change); };
  const auto same = of_floats("same", [](const RandomConv&, Calls, LinearBuffers&) {});
  const auto flip = of_floats("flip", [](const RandomConv& c, Calls, LinearBuffers& buffers) {
    buffers.y(c.outputs() - 1, 1).back() ^= std::byte{1};
  });
  const auto beside = of_floats(
      "beside", [](const RandomConv&, Calls, LinearBuffers& buffers) { buffers.bytes().back() = std::byte{1}; });
  const auto unclamped = of_floats("unclamped", [](const RandomConv& c, Calls calls, LinearBuffers& buffers) {
    RandomConv without = c;
    without.clamp = {};
    ASSERT_TRUE(conv_run({})(without, calls, buffers).ok());
  });
  const auto unbiased = of_floats("unbiased", [](const RandomConv& c, Calls calls, LinearBuffers& buffers) {
    RandomConv without = c;
    without.bias.clear();
    ASSERT_TRUE(conv_run({})(without, calls, buffers).ok());
  });
  const auto after_first_call = of_floats("after_first_call", [](const RandomConv&, Calls calls, LinearBuffers& b) {
    if (calls.size() > 1) b.y(0, 1).front() ^= std::byte{1};
  });
  for (const bool on_device : {false, true}) {
    ConvCandidates candidates{.on_device = on_device};
    const auto of_codes = [](const std::string& name, auto change) {
      return changed_run(name, static_conv_run({}), change);
    };
    candidates.statics = {
        of_codes("same", [](const StaticConvCase&, LinearBuffers&) {}),
        of_codes("flip", [](const StaticConvCase& c,
                            LinearBuffers& buffers) { buffers.y(c.outputs() - 1, 1).back() ^= std::byte{1}; }),
        of_codes("beside",
                 [](const StaticConvCase&, LinearBuffers& buffers) { buffers.bytes().back() = std::byte{1}; }),
        of_codes("residual_forgotten", [](const StaticConvCase& c, LinearBuffers& buffers) {
          StaticConvCase without = c;
          without.parameters.residual.reset();
          ASSERT_TRUE(static_conv_run({})(without, buffers).ok());
        })};
    if (!on_device) {
      candidates.int8 = {same, flip, beside, unclamped, unbiased};
      candidates.per_image = candidates.int8;
      candidates.floats = {same, after_first_call, beside, unclamped, unbiased};
    }
    const auto report = verify_conv_with(candidates, {.outputs = on_device ? 2'000'000u : 50'000u, .seed = 3});
    ASSERT_TRUE(report.ok()) << report.status().message();
    ASSERT_EQ(report->kernels.size(), on_device ? 4u : 19u);
    for (const VerifyKernel& kernel : report->kernels) {
      EXPECT_GE(kernel.outputs_compared, on_device ? 2'000'000u : 50'000u) << kernel.name;
      EXPECT_EQ(kernel.different == 0, kernel.name == "same") << kernel.name << ": " << kernel.first_difference;
    }
    const std::string first = report->kernels[1].first_difference;
    EXPECT_EQ(first.find("seed 3, convolution 0, "), 0u) << first;
    EXPECT_NE(first.find("the reference gives"), std::string::npos) << first;  // of the first layer in any case
    uint64_t by_path = 0;
    for (const auto& [name, outputs] : report->expected_by) {
      EXPECT_EQ(name, to_string(*default_cpu_path()));
      by_path += outputs;
    }
    EXPECT_EQ(by_path > 0, on_device && *default_cpu_path() != CpuPath::kReference);
  }
}

TEST(VerifyModel, EveryKernelOfTheModel) {
  for (const int32_t directions : {1, 2}) {
    const GruModel model = some_model(directions);
    const auto report = verify_model(model, {.outputs = 5000});
    ASSERT_TRUE(report.ok()) << report.status().message();
    size_t kernels = 0;
    for (const CpuPath path : kAllCpuPaths)
      kernels += path != CpuPath::kReference && cpu_can_run(path) && model.supports(path).ok() ? 1 : 0;
    EXPECT_EQ(report->kernels.size(), kernels);
    for (const VerifyKernel& kernel : report->kernels) {
      EXPECT_EQ(kernel.name, kernel.path);
      EXPECT_GE(kernel.outputs_compared, 5000u);
      EXPECT_EQ(kernel.different, 0u) << kernel.first_difference;
    }
  }
}

TEST(VerifyModel, FindsAnOutputAndAStateThatDiffer) {
  const GruModel model = some_model();
  std::vector<Candidate<GruRun>> candidates;
  candidates.push_back(faulty("same", [](RunOutput&) {}));
  candidates.push_back(faulty("output", [](RunOutput& out) { out.y.back() ^= std::byte{1}; }));
  candidates.push_back(faulty("state", [](RunOutput& out) { out.state.layer(0)[0] ^= std::byte{1}; }));
  candidates.push_back({VerifyKernel{"never", "", 0, 0, 0, {}},
                        [](const GruCase&) -> Result<std::optional<RunOutput>> { return std::optional<RunOutput>(); }});
  const auto report = verify_model_with(model, candidates, {.outputs = 1, .seed = 9}, true);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->kernels.size(), 4u);
  EXPECT_EQ(report->kernels[0].different, 0u);
  EXPECT_EQ(report->kernels[0].outputs_compared, 7u);  // one step of one sequence
  EXPECT_EQ(report->kernels[1].different, 1u);
  EXPECT_NE(report->kernels[1].first_difference.find("seed 9 run 0, T 1 N 1: y[0, 0, 6] is "), std::string::npos)
      << report->kernels[1].first_difference;
  EXPECT_NE(report->kernels[1].first_difference.find(", the reference gives "), std::string::npos);
  EXPECT_EQ(report->kernels[2].different, 1u);
  EXPECT_EQ(report->kernels[2].first_difference, "seed 9 run 0, T 1 N 1: the last state");
  EXPECT_EQ(report->kernels[3].outputs_compared, 0u);
}

TEST(VerifyModel, AnErrorNamesTheRunAndTheKernel) {
  std::vector<Candidate<GruRun>> candidates;
  candidates.push_back(
      {VerifyKernel{"broken", "", 0, 0, 0, {}},
       [](const GruCase&) -> Result<std::optional<RunOutput>> { return Status(StatusCode::kIo, "no memory"); }});
  const Status status = verify_model_with(some_model(), candidates, {.outputs = 1}, true).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "seed 1 run 0, T 1 N 1, broken: no memory");
}

TEST(Fingerprint, IsTheSameForThePathsOfThisMachine) {
  const auto expected = fingerprint_all(std::nullopt);
  ASSERT_TRUE(expected.ok());
  std::vector<std::string> names;
  for (const auto& [name, hash] : *expected) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"activation_table", "fp16_table", "fp16_softmax", "gru", "linear_int8",
                                             "linear_static", "linear_static_16", "conv_static", "conv_int8"}));
  EXPECT_EQ(*fingerprint_all(CpuPath::kScalar), *expected);
}

}  // namespace
}  // namespace isobit
