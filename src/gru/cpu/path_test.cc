// SPDX-License-Identifier: Apache-2.0
// Paths on processors other than this one: cpu.cc is compiled here once more, with a processor that the tests make up.
// Its functions take the place of the library's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/cpuid.h"
#include "core/random.h"
#include "isobit/gru.h"

#if defined(__x86_64__) && !defined(ISOBIT_NO_X86_KERNELS)

#include <sys/syscall.h>
#include <unistd.h>

namespace isobit::testing {
namespace {

std::set<std::string> processor;

int fake_cpu_supports(const char* feature) { return processor.count(feature) != 0 ? 1 : 0; }

CpuidRegisters fake_cpuid_leaf(unsigned leaf, unsigned subleaf) {
  CpuidRegisters r;
  if (leaf == 1 && subleaf == 0) {
    r.ecx = processor.count("f16c") != 0 ? 1U << 29 : 0;
  } else if (leaf == 7 && subleaf == 0) {
    r.edx = processor.count("amx") != 0 ? 3U << 24 : processor.count("amx_tile") != 0 ? 1U << 24 : 0;
  } else if (leaf == 7 && subleaf == 1) {
    r.eax = processor.count("avxvnni") != 0 ? 1U << 4 : 0;
  }
  return r;
}

/// The system grants the tiles' registers.
long fake_syscall(long /*number*/, long /*code*/, long /*feature*/) { return 0; }

}  // namespace
}  // namespace isobit::testing

// NOLINTBEGIN(bugprone-reserved-identifier): what cpu.cc calls
#define __builtin_cpu_supports(feature) isobit::testing::fake_cpu_supports(feature)
#define cpuid_leaf isobit::testing::fake_cpuid_leaf
#define syscall isobit::testing::fake_syscall
#include "core/cpu.cc"  // NOLINT: on purpose, see above
#undef __builtin_cpu_supports
#undef cpuid_leaf
#undef syscall
// NOLINTEND(bugprone-reserved-identifier)

namespace isobit {
namespace {

using testing::processor;

const std::set<std::string> kAvx2 = {"avx2", "fma", "f16c"};
const std::set<std::string> kAvx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"};

/// Sets ISOBIT_CPU for a scope.
class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* before = std::getenv("ISOBIT_CPU"); before != nullptr) before_ = before;
    set(value);
  }
  ~Environment() { set(before_ ? before_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const char* value) {
    if (value != nullptr) {
      setenv("ISOBIT_CPU", value, 1);
    } else {
      unsetenv("ISOBIT_CPU");
    }
  }
  std::optional<std::string> before_;
};

std::string usable() {
  std::string names;
  for (const CpuPath path : kAllCpuPaths)
    if (cpu_can_run(path)) names += (names.empty() ? "" : " ") + std::string(to_string(path));
  return names;
}

Result<GruModel> small_model() {
  Random random(1);
  const auto values = [&random](size_t count) {
    std::vector<float> out(count);
    for (float& value : out) value = static_cast<float>(random.between(-100, 100)) / 150.0f;
    return out;
  };
  GruWeights weights;
  weights.layers.push_back({3, 4, values(36), values(48), values(12), values(12)});
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(std::move(weights)));
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(values(30), 5, 2));
  return calibrator.finish({});
}

TEST(Paths, FollowWhatTheProcessorHas) {
  const Environment environment(nullptr);
  processor = {};
  EXPECT_EQ(usable(), "reference scalar");
  EXPECT_EQ(*default_cpu_path(), CpuPath::kScalar);
  processor = {"avxvnni"};  // without AVX2 it is of no use
  EXPECT_EQ(usable(), "reference scalar");
  processor = kAvx2;
  EXPECT_EQ(usable(), "reference scalar avx2");
  EXPECT_EQ(*default_cpu_path(), CpuPath::kAvx2);
  processor.insert("avxvnni");
  EXPECT_EQ(usable(), "reference scalar avx2 avxvnni");
  EXPECT_EQ(*default_cpu_path(), CpuPath::kAvxVnni);
  for (const std::string& missing : kAvx2) {
    processor = kAvx2;
    processor.erase(missing);
    EXPECT_EQ(usable(), "reference scalar") << "without " << missing;
  }
  for (const std::string& missing : kAvx512) {
    processor = kAvx512;
    processor.insert(kAvx2.begin(), kAvx2.end());
    EXPECT_EQ(usable(), "reference scalar avx2 avx512vnni");
    EXPECT_EQ(*default_cpu_path(), CpuPath::kAvx512Vnni);
    processor.erase(missing);
    EXPECT_EQ(usable(), "reference scalar avx2") << "without " << missing;
  }
  for (const bool with_avx512 : {true, false})
    for (const char* tiles : {"amx", "amx_tile"}) {  // those without products of 8-bit integers are of no use
      processor = kAvx2;
      if (with_avx512) processor.insert(kAvx512.begin(), kAvx512.end());
      processor.insert(tiles);
      const bool runs = with_avx512 && std::string(tiles) == "amx";
      EXPECT_EQ(cpu_can_run(CpuPath::kAmx), runs);
      EXPECT_EQ(*default_cpu_path(), runs ? CpuPath::kAmx : with_avx512 ? CpuPath::kAvx512Vnni : CpuPath::kAvx2);
    }
  processor = kAvx2;
  EXPECT_EQ(cpu_cannot_run_reason(CpuPath::kAmx),
            "the processor or the system lacks AMX of 8-bit integers, or AVX-512");
  EXPECT_EQ(cpu_cannot_run_reason(CpuPath::kAvx2), "");
  EXPECT_EQ(cpu_cannot_run_reason(CpuPath::kAvxVnni), "the processor lacks AVX-VNNI");
  EXPECT_EQ(cpu_cannot_run_reason(CpuPath::kAvx512Vnni), "the processor lacks one of AVX-512 F, BW, DQ, VL, VNNI");
  processor = {};
  EXPECT_EQ(cpu_cannot_run_reason(CpuPath::kAvx2), "the processor lacks one of AVX2, FMA, F16C");
}

TEST(Paths, TheEnvironmentCannotAskForWhatTheProcessorLacks) {
  const Environment environment("avx2");
  processor = {};
  const Result<CpuPath> path = default_cpu_path();
  ASSERT_FALSE(path.ok());
  EXPECT_EQ(path.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(path.status().message(),
            "environment variable ISOBIT_CPU asks for 'avx2': the processor lacks one of AVX2, FMA, F16C");

  // A model can be made and saved there, but only runs on a path that is named.
  const Result<GruModel> model = small_model();
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->choose_path(std::nullopt).status().message(), path.status().message());
  EXPECT_EQ(*model->choose_path(CpuPath::kScalar), CpuPath::kScalar);
}

TEST(Paths, AModelRefusesWhatTheProcessorLacks) {
  const Environment environment(nullptr);
  processor = {};
  const Result<GruModel> model = small_model();
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(*model->choose_path(std::nullopt), CpuPath::kScalar);
  RunOptions options;
  options.path = CpuPath::kAvx512Vnni;
  GruState state = model->initial_state(1);
  Workspace workspace = model->workspace(1, 1);
  const std::vector<float> x(3, 0.5f);
  std::vector<float> y(4, 7.0f);
  const Status status = model->forward(x, y, 1, state, workspace, options);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "kernel 'avx512vnni': the processor lacks one of AVX-512 F, BW, DQ, VL, VNNI");
  EXPECT_EQ(y, std::vector<float>(4, 7.0f));  // never another path instead
  options.path.reset();
  EXPECT_TRUE(model->forward(x, y, 1, state, workspace, options).ok());
}

}  // namespace
}  // namespace isobit

#else

namespace isobit {
namespace {

TEST(Paths, OthersAreNotBuilt) {
  EXPECT_EQ(cpu_cannot_run_reason(CpuPath::kAvx2), "not built for this processor family");
  EXPECT_EQ(*default_cpu_path(), CpuPath::kScalar);
}

}  // namespace
}  // namespace isobit

#endif
