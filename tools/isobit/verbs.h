// SPDX-License-Identifier: Apache-2.0
// The verbs: options in, an Outcome out. main.cc and help.cc alone know the argument parser.
#ifndef ISOBIT_TOOLS_VERBS_H_
#define ISOBIT_TOOLS_VERBS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isobit/report.h"
#include "isobit/sequences.h"
#include "isobit/status.h"
#include "value.h"

namespace isobit::tool {

/// What a verb has to say. Exit status 0, 1 when `failure` names the check that failed, or that of an error when
/// `refusal` says what a run that is not dry would not do.
struct Outcome {
  Value json = Value::object();
  std::string text;
  std::string failure, refusal;
  std::vector<std::string> warnings{};       // about what was done all the same; exit status 0
  std::function<Result<Outcome>()> again{};  // --repeat: the same once more, after a line on standard input

  /// What there is to say of something more.
  Outcome& add(const Description& description) {
    json.update(Value::parsed(description.json));
    text += description.text;
    warnings.insert(warnings.end(), description.warnings.begin(), description.warnings.end());
    return *this;
  }
};

struct CommonOptions {
  bool json = false;
  bool quiet = false;
};

/// How a float model is read. Empty: the default, which is then reported as assumed.
struct FloatModelOptions {
  std::vector<std::string> layer;  // prefix of the GRU's arrays; or NAME=W,R[,BW,BR], once for each layer and direction
  std::string gate_order;          // urn, pytorch, onnx
  std::string layout;              // rows, columns
  std::string reset;               // after, before
};

struct InspectOptions : CommonOptions {
  std::string file;
  std::string tensor, output;  // GGUF, low-bit weights: write this tensor there; both or none
  bool full = false;           // integer models: rescales and every row of the proof, too
  FloatModelOptions source;
};

/// What is said of sequences beside the data of an option.
struct DataOptions : SequenceOptions {
  explicit DataOptions(const std::string& option) {
    data_name = option;
    batch_first_name = "--batch-first";
    lengths_name = "--lengths";
    h0_name = "--state";
  }
};

/// The same of --calibrate.
struct CalibrationDataOptions : DataOptions {
  CalibrationDataOptions() : DataOptions("--calibrate") { one_file = true; }
  float zoneout = 0.0f;  // of the float forward, of --validate too
};

/// What quantize and tune have: a float model, data, and how they are read.
struct CalibrationOptions : CommonOptions {
  std::string model, output, rounding = "nearest_even";
  std::vector<std::string> data, validate;  // validate: quantize has a default, the last tenth of data
  CalibrationDataOptions of_data;
  std::string validate_lengths, validate_h0;
  FloatModelOptions source;
  bool dry_run = false;
  int threads = 0;
};

struct QuantizeOptions : CalibrationOptions {
  std::string bits = "8", method = "minmax", scale = "pow2", table = "default", reason;
};

struct TuneOptions : CalibrationOptions {
  std::string svg, html, metric, like;
  std::optional<double> target;
  std::optional<int64_t> max_bytes;
  std::string method, scale, table;  // empty: searched
};

/// How floats become low-bit weights.
struct FormOptions {
  std::optional<int32_t> bits;       // default 4
  std::optional<int64_t> group;      // default 64; 0: a whole row
  std::string kind, method, scales;  // empty: symmetric, the kind's own, f32
  std::string weight_layout;         // of convolutions: ohwi, oihw, iohw

  bool operator==(const FormOptions&) const = default;
};

struct PackOptions : CommonOptions {
  std::string model, output;
  FormOptions form;
  std::optional<int64_t> groups;              // of weight_layout iohw
  std::vector<std::string> include, exclude;  // patterns of names
  std::string checkpoint_format;              // of GPTQ and AWQ; empty: what lies beside the model says
  bool requantize = false;
  bool dry_run = false;
  int threads = 1;
};

/// Verbs that can run on a CUDA device; device.h.
struct DeviceOptions : CommonOptions {
  std::string device = "cpu";  // cpu, cuda, cuda:N
};

/// What matmul and conv have.
struct LayerOptions : DeviceOptions {
  std::string weights, input, output;  // FILE:TENSOR; FILE where it holds one
  std::string activations = "float";   // float, int8, int8_asymmetric or the verb's own
  std::string kernel, bias, clamp = "none";
  int threads = 1;
};

struct MatmulOptions : LayerOptions {
  std::string input_range, output_range;  // static: LOW:HIGH; empty: that of the data
  bool codes = false;                     // static: y in codes
};

struct ConvOptions : LayerOptions {
  FormOptions form;                                                            // of weights that are floats
  std::vector<int64_t> stride{1}, dilation{1}, padding{0}, output_padding{0};  // one, or of rows and columns; four pads
  std::optional<int64_t> groups;                                               // default 1, or what the weights say
  bool transposed = false;
  std::string layout = "nhwc";  // of X and Y
};

struct RunOptions : DeviceOptions {
  std::string model, input, output, layer, kernel, state, save_state, lengths, zoneout_mask;
  int threads = 1;
  int64_t chunk = 0;
  bool integer = false;
  bool batch_first = false;
};

struct CompareOptions : DeviceOptions {
  std::string float_model, fixed_model, html;
  std::vector<std::string> data;
  DataOptions sequences{"--data"};
  FloatModelOptions source;
  double part = 1.0;  // codes
  float zoneout = 0.0f;
  bool ablate = false;
  int threads = 0;
};

struct VerifyOptions : DeviceOptions {
  std::string model, layer, operation;
  uint64_t outputs = 10'000'000;
  uint64_t seed = 1;
};

struct FingerprintOptions : DeviceOptions {
  std::string kernel;
};

/// A table: a saved FP16 table, a function whose table is built in, or (check, show) the tables of an integer model.
struct TableSourceOptions {
  std::string model = "f32", values = "f32";  // of a built-in table
};

struct BenchOptions : DeviceOptions {
  std::string operation = "gru";
  std::vector<int64_t> hidden = {256};
  std::vector<int64_t> batch = {1};
  std::vector<std::string> mode = {"sequence"};
  std::vector<std::string> kernel;
  int64_t input = 0;  // 0: as hidden
  int64_t steps = 100;
  std::string bits = "8";
  double min_time = 0.5;
  bool all_kernels = false;
  // table
  std::vector<std::string> function = {"silu"}, dtype = {"f16", "f32"};
  TableSourceOptions source;
  int64_t elements = 16384;
  std::vector<std::string> conv = {"56x56x64:64:3"};  // of bench/conv.h
  // linear
  std::vector<std::string> shape = {"4096x4096"};  // KxN
  std::vector<std::string> activations = {"int8"};
  std::vector<int64_t> m = {1, 8, 64, 256};
  int64_t group = 64;     // 0: K
  int64_t footprint = 0;  // MiB; 0: eight times the last-level cache
  bool repeat = false;
};

struct TableFitOptions : CommonOptions {
  std::string function, output, model = "f32", values = "f32", goal = "max_ulp", steps = "1,8x32,1", range;
  std::vector<double> cut_points;
  double beta = 1.0;
};

struct TableCheckOptions : CommonOptions {
  std::vector<std::string> tables;
  bool all = false;
  std::vector<std::string> model = {"f32"}, values = {"f32"};
  std::string exact;
};

struct TableShowOptions : CommonOptions {
  std::string table, svg, exact, layer, gate;
  TableSourceOptions source;
};

struct TableCompareOptions : CommonOptions {
  std::string first, second;
  TableSourceOptions source;
};

struct TableExportOptions : CommonOptions {
  std::string table, c, hex, name;
  TableSourceOptions source;
};

struct TableRunOptions : DeviceOptions {
  std::string table, input, output, dtype, kernel;
  TableSourceOptions source;
  int threads = 1;
};

struct ExportOptions : CommonOptions {
  std::string model, output, name, layer, gate, check, core, target = "generic";
  int64_t selftest_steps = 8;
  bool allow_large_tables = false, float_entry = false, force = false;
};

Result<Outcome> inspect(const InspectOptions& options);
Result<Outcome> quantize(const QuantizeOptions& options);
Result<Outcome> tune(const TuneOptions& options);
Result<Outcome> pack(const PackOptions& options);
Result<Outcome> matmul(const MatmulOptions& options);
Result<Outcome> conv(const ConvOptions& options);
Result<Outcome> run(const RunOptions& options);
Result<Outcome> compare(const CompareOptions& options);
Result<Outcome> verify(const VerifyOptions& options);
Result<Outcome> fingerprint(const FingerprintOptions& options);
Result<Outcome> supported(const DeviceOptions& options);
Result<Outcome> bench(const BenchOptions& options);
Result<Outcome> export_c(const ExportOptions& options);
Result<Outcome> table_fit(const TableFitOptions& options);
Result<Outcome> table_check(const TableCheckOptions& options);
Result<Outcome> table_show(const TableShowOptions& options);
Result<Outcome> table_compare(const TableCompareOptions& options);
Result<Outcome> table_export(const TableExportOptions& options);
Result<Outcome> table_run(const TableRunOptions& options);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_VERBS_H_
