// SPDX-License-Identifier: Apache-2.0
// The isobit command: arguments to options, outcomes to text or JSON. Exit status 0 done, 1 a check failed, 2 bad
// usage or input.
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "help.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int kExitCheckFailed = 1, kExitBadUsage = 2;

template <typename T>
struct NumberOf {
  using Type = T;
};
template <typename T>
struct NumberOf<std::optional<T>> : NumberOf<T> {};
template <typename T>
struct NumberOf<std::vector<T>> : NumberOf<T> {};

/// What is wrong with the text of a number; empty: nothing.
template <typename T>
std::string number_problem(const std::string& text) {
  using Number = typename NumberOf<T>::Type;
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = std::is_integral_v<Number>;
  if (error == std::errc() && end == text.data() + text.size() && (whole || std::isfinite(number))) return {};
  std::string expected = !whole                       ? "a finite number"
                         : std::is_unsigned_v<Number> ? "a whole number, 0 or more"
                                                      : "a whole number";
  if (error == std::errc::result_out_of_range && whole)
    expected += ", at most " + std::to_string(std::numeric_limits<Number>::max());
  return text + ": expected " + expected;
}

class Commands {
 public:
  explicit Commands(CLI::App& app) : app_(app) {
    add_inspect();
    add_quantize();
    add_tune();
    add_pack();
    add_matmul();
    add_run();
    add_compare();
    add_verify();
    add_fingerprint();
    add_supported();
    add_bench();
    add_table();
    add_help();
    add_completion();
    describe_verbs(app);
  }

  /// Runs the verb that the parser met.
  int execute() {
    Result<Outcome> result = action_();
    for (;;) {
      if (!result.ok()) return fail(result.status().message());
      if (!common_->quiet)
        for (const std::string& warning : result->warnings) say("warning: " + warning, Style::kWarning);
      if (common_->json) {
        std::fputs((result->json.to_json() + "\n").c_str(), stdout);
      } else if (!common_->quiet) {
        std::fputs(result->text.c_str(), stdout);
      }
      if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail("standard output: it cannot be written");
      std::string line;
      if (!result->again || !std::getline(std::cin, line)) break;
      result = result->again();
    }
    if (!result->refusal.empty()) return fail(result->refusal);
    if (result->failure.empty()) return 0;
    say(result->failure, Style::kError);
    return kExitCheckFailed;
  }

  int fail(const std::string& message) const {
    say(message, Style::kError);
    return kExitBadUsage;
  }

 private:
  void say(const std::string& message, Style style) const {
    std::fprintf(stderr, "%s %s\n", styled("isobit " + verb_ + ":", style, stderr).c_str(), message.c_str());
  }

  /// A subcommand with the options of all verbs; `verb` runs after parsing.
  template <typename Options, typename Verb>
  CLI::App* add(const std::string& name, const std::string& help, Options& options, Verb verb,
                CLI::App* parent = nullptr) {
    CLI::App* command = (parent != nullptr ? parent : &app_)->add_subcommand(name, help);
    command->add_flag("--json", options.json, "one JSON document on standard output");
    command->add_flag("--quiet", options.quiet, "no text and no progress, errors only");
    command->callback([this, parent, name, &options, verb] {
      verb_ = (parent != nullptr ? parent->get_name() + " " : "") + name;
      common_ = &options;
      action_ = verb;
    });
    return command;
  }

  /// An option of a number, or of a list of them.
  template <typename T>
  static CLI::Option* add_number(CLI::App* command, const std::string& name, T& value, const std::string& help) {
    return command->add_option(name, value, help)->check(number_problem<T>);
  }

  static void add_device(CLI::App* command, DeviceOptions& options) {
    command->add_option("--device", options.device, "cpu, or cuda, cuda:N: CUDA device 0, N; the bytes are the same")
        ->type_name("DEVICE")
        ->capture_default_str();
  }

  static void add_batch_first(CLI::App* command, bool& batch_first) {
    command->add_flag("--batch-first", batch_first, "arrays of three dimensions are [N, T, C], the outputs too");
  }

  static void add_source(CLI::App* command, FloatModelOptions& source) {
    command
        ->add_option(
            "--layer", source.layer,
            "prefix of the GRU's arrays, where a file holds several; NAME=W,R[,BW,BR] for arrays with names of "
            "their own (NAME_l1, NAME_l0_reverse, ... for more layers and directions; NAME=W,R,B: both biases in B)")
        ->allow_extra_args(false)
        ->type_name("NAME");
    command
        ->add_option("--gate-order", source.gate_order,
                     "gate order of a float model: pytorch, urn or onnx; default: that of its names")
        ->type_name("ORDER");
    command
        ->add_option("--layout", source.layout,
                     "of a float model's matrices: rows, W [3H, C] (PyTorch, ONNX), or columns, W [C, 3H] (Keras, "
                     "Haste); default: what the shapes say")
        ->type_name("LAYOUT");
    command->add_option("--reset", source.reset, "reset variant of a float model: after (default) or before")
        ->type_name("WHEN");
  }

  /// What is said of the data of --calibrate and --validate beside it.
  static void add_data(CLI::App* command, CalibrationDataOptions& data, std::string& validate_lengths,
                       std::string& validate_h0) {
    add_batch_first(command, data.batch_first);
    const std::string lengths = "integers [N]: steps of each sequence; what follows is padding";
    const std::string states = "first states, floats [layers * directions, N, H]";
    command->add_option("--lengths", data.lengths, lengths)->type_name("FILE");
    command->add_option("--state", data.h0, states)->type_name("FILE");
    add_number(command, "--zoneout", data.zoneout, "probability of the float side: h' = P * h + (1 - P) * h'")
        ->type_name("P")
        ->capture_default_str();
    auto* validate = command->get_option("--validate");
    command->add_option("--validate-lengths", validate_lengths, "the same of --validate")
        ->type_name("FILE")
        ->needs(validate);
    command->add_option("--validate-state", validate_h0, states + ", of --validate")->type_name("FILE")->needs(validate);
  }

  void add_inspect() {
    auto* command = add("inspect", "what a file of weights holds", inspect_, [this] { return inspect(inspect_); });
    command
        ->add_option(
            "FILE", inspect_.file,
            "float model (npz, safetensors), integer model, FP16 table, low-bit weights, GPTQ, AWQ or GGUF file")
        ->required();
    auto* tensor =
        command
            ->add_option("--tensor", inspect_.tensor, "tensor of a GGUF file or of low-bit weights to write as float32")
            ->type_name("NAME");
    auto* output = command->add_option("-o,--output", inspect_.output, "npy to write")->type_name("OUT");
    command->add_flag("--full", inspect_.full, "integer models: rescales and the whole overflow proof, too");
    tensor->needs(output);
    output->needs(tensor);
    add_source(command, inspect_.source);
  }

  void add_quantize() {
    auto& o = quantize_;
    auto* command =
        add("quantize", "float model and data in, integer model out", o, [this] { return quantize(quantize_); });
    command->add_option("MODEL", o.model, "float model: npz or safetensors with PyTorch names")->required();
    command->add_option("--calibrate", o.data, "npy or npz with [T, C] or [T, N, C]; files, folders, patterns")
        ->required()
        ->type_name("DATA");
    command->add_option("-o,--output", o.output, "integer model to write (safetensors)")->type_name("OUT");
    command
        ->add_option("--bits", o.bits,
                     "small, balanced, precise, or a list of widths where later entries win: 8,linear=16,l1.h=16")
        ->type_name("SPEC")
        ->capture_default_str();
    command->add_option("--method", o.method, "minmax, percentile:P, sqnr or ema:A, or a list: minmax,x=ema:0.9")
        ->type_name("METHOD")
        ->capture_default_str();
    command->add_option("--scale", o.scale, "pow2 or real")->type_name("KIND")->capture_default_str();
    command->add_option("--rounding", o.rounding, "nearest_even, nearest_up, nearest_away or floor")
        ->type_name("MODE")
        ->capture_default_str();
    command
        ->add_option("--table", o.table,
                     "direct, interpolated or segments:N; default: by the width of its input; or a list, as in "
                     "direct,l1=segments:16")
        ->type_name("KIND")
        ->capture_default_str();
    command->add_option("--reason", o.reason, "why these settings: kept in the model, printed by isobit inspect")
        ->type_name("TEXT");
    command
        ->add_option("--validate", o.validate,
                     "data to measure the outputs' SQNR on; default the last tenth of --calibrate")
        ->type_name("DATA");
    add_source(command, o.source);
    add_data(command, o.of_data, o.validate_lengths, o.validate_h0);
    command->add_flag("--dry-run", o.dry_run, "calibrate and report, write nothing");
    add_number(command, "--threads", o.threads, "0: one per processor")->type_name("N")->capture_default_str();
  }

  void add_tune() {
    auto& o = tune_;
    auto* command = add("tune", "find bit widths, methods, scales and tables for a quality or a size", o,
                        [this] { return tune(tune_); });
    command->add_option("MODEL", o.model, "float model: npz or safetensors with PyTorch names")->required();
    command->add_option("--calibrate", o.data, "npy or npz with [T, C] or [T, N, C]; files, folders, patterns")
        ->required()
        ->type_name("DATA");
    command->add_option("--validate", o.validate, "other data, to measure quality on")->required()->type_name("DATA");
    command->add_option("-o,--output", o.output, "integer model to write (safetensors)")->type_name("OUT");
    auto* target =
        add_number(command, "--target", o.target,
                   "least SQNR in dB of every layer's output, at the fewest bytes; default 35; or of --metric")
            ->type_name("DB");
    auto* bytes =
        add_number(command, "--max-bytes", o.max_bytes, "most bytes of the model, at the best quality")->type_name("N");
    auto* like =
        command
            ->add_option("--like", o.like,
                         "widths as in quantize --bits: at most the bytes of its tensors, at least its quality")
            ->type_name("SPEC");
    target->excludes(bytes)->excludes(like);
    bytes->excludes(like);
    command
        ->add_option("--metric", o.metric,
                     "your own quality, higher is better: COMMAND FLOAT.npz INTEGER.npz MODEL prints a number last")
        ->check([](const std::string& text) { return text.empty() ? "must not be empty" : ""; })
        ->type_name("COMMAND")
        ->excludes(bytes)
        ->excludes(like);
    command->add_option("--svg", o.svg, "picture of quality over bytes to write; needs gnuplot")->type_name("OUT");
    command->add_option("--method", o.method, "methods as in quantize; default: searched")->type_name("METHOD");
    command->add_option("--scale", o.scale, "pow2 or real; default: searched, pow2 preferred")->type_name("KIND");
    command->add_option("--table", o.table, "tables as in quantize; default: searched")->type_name("KIND");
    command->add_option("--rounding", o.rounding, "nearest_even, nearest_up, nearest_away or floor")
        ->type_name("MODE")
        ->capture_default_str();
    add_source(command, o.source);
    add_data(command, o.of_data, o.validate_lengths, o.validate_h0);
    command->add_flag("--dry-run", o.dry_run, "search and report, write no model");
    add_number(command, "--threads", o.threads, "0: one per processor")->type_name("N")->capture_default_str();
  }

  void add_pack() {
    auto& o = pack_;
    auto* command = add("pack", "weights of 1, 2, 4 and 8 bits: from floats, or imported from GGUF, GPTQ and AWQ", o,
                        [this] { return pack(pack_); });
    command
        ->add_option(
            "MODEL", o.model,
            "npz, safetensors, model.safetensors.index.json or GGUF; quantised tensors are imported as they are")
        ->required();
    command->add_option("-o,--output", o.output, "low-bit weights to write (safetensors)")->type_name("OUT");
    add_number(command, "--bits", o.bits, "of a code: 1, 2, 4 (default) or 8")->type_name("N");
    add_number(command, "--group", o.group, "weights that share a scale, default 64; 0, or more than a row: a row")
        ->type_name("N");
    command->add_option("--kind", o.kind, "symmetric (default), zero_point or offset")->type_name("KIND");
    command
        ->add_option("--method", o.method,
                     "mse (default at 1 and 2 bits), absmax (symmetric; its default at 4 and 8), minmax (the others')")
        ->type_name("METHOD");
    command->add_option("--scales", o.scales, "type of scales and offsets: f32 (default), f16 or bf16")
        ->type_name("TYPE");
    command
        ->add_option(
            "--include", o.include,
            "matrices of floats to quantise, a pattern such as '*.mlp.*', once for each; default all, but none "
            "where the model holds quantised tensors")
        ->allow_extra_args(false)
        ->type_name("GLOB");
    command
        ->add_option(
            "--exclude", o.exclude,
            "tensors neither to quantise nor to import, also of types that cannot be read: what the result can hold "
            "stays as it is, quantised tensors of GGUF are left out")
        ->allow_extra_args(false)
        ->type_name("GLOB");
    command
        ->add_option(
            "--checkpoint-format", o.checkpoint_format,
            "gptq, gptq_v2 or awq: how GPTQ and AWQ tensors are stored, whatever a JSON file beside the model says; "
            "--bits and --group then say it, too")
        ->type_name("FORMAT");
    command->add_flag("--requantize", o.requantize, "quantise imported matrices again, too");
    command->add_flag("--dry-run", o.dry_run, "all of it but writing: the report, and what would be refused");
    add_number(command, "--threads", o.threads, "0: one per processor")->type_name("N")->capture_default_str();
  }

  void add_matmul() {
    auto& o = matmul_;
    auto* command =
        add("matmul", "a linear layer of low-bit weights on rows of an array", o, [this] { return matmul(matmul_); });
    command->add_option("WEIGHTS", o.weights, "FILE:TENSOR, a matrix of isobit pack; FILE where it holds one")
        ->required();
    command->add_option("X", o.input, "npy [..., K]: float16, float32, float64")->required();
    command->add_option("-o,--output", o.output, "npy [..., N] to write: the type of X, float32 for float64")
        ->required()
        ->type_name("OUT");
    command
        ->add_option("--activations", o.activations,
                     "float; int8 or int8_asymmetric: each group of a row becomes 8 bits, the same bytes everywhere; "
                     "static: 8-bit codes in and out, for 8-bit symmetric weights with one group a row")
        ->type_name("KIND")
        ->capture_default_str();
    command
        ->add_option(
            "--kernel", o.kernel,
            "int8_avx2 and so on, as isobit supported lists them, or what follows the operation in such a name, "
            "as in avx2; default the best")
        ->type_name("NAME");
    add_number(command, "--threads", o.threads, "0: one per processor")->type_name("N")->capture_default_str();
    command->add_option("--bias", o.bias, "array [N] of the same file to add")->type_name("NAME");
    command->add_option("--clamp", o.clamp, "of the result: none, relu, relu6 or LOW:HIGH")
        ->type_name("ACT")
        ->capture_default_str();
    command->add_option("--input-range", o.input_range, "static: LOW:HIGH of X's codes; default least and largest of X")
        ->type_name("RANGE");
    command
        ->add_option("--output-range", o.output_range,
                     "static: LOW:HIGH of the result's codes; default least and largest result")
        ->type_name("RANGE");
    command->add_flag("--codes", o.codes, "static: write the codes of the result instead of floats");
  }

  void add_run() {
    auto& o = run_;
    auto* command = add("run", "run an integer model", o, [this] { return run(run_); });
    command->add_option("MODEL", o.model, "integer model")->required();
    command->add_option("INPUT", o.input, "npy or npz with [T, C] or [T, N, C]")->required();
    command->add_option("-o,--output", o.output, "npy (one array) or npz to write")->required()->type_name("OUT");
    command->add_option("--layer", o.layer, "which GRU, where the file holds several")->type_name("NAME");
    add_device(command, o);
    command
        ->add_option(
            "--kernel", o.kernel,
            "reference, scalar, avx2, avxvnni, avx512vnni or amx, or one of the device (isobit supported lists them); "
            "default the best")
        ->type_name("NAME");
    add_number(command, "--threads", o.threads, "0: one per processor")->type_name("N")->capture_default_str();
    command->add_flag("--integer", o.integer, "codes in, codes out");
    command
        ->add_option("--state", o.state, "first state: a file of --save-state, or floats [layers * directions, N, H]")
        ->type_name("IN");
    command->add_option("--save-state", o.save_state, "npz for the codes of the last state")->type_name("OUT");
    add_number(command, "--chunk", o.chunk, "steps a call; the bytes do not depend on it")->type_name("T");
    add_batch_first(command, o.batch_first);
    command
        ->add_option("--lengths", o.lengths,
                     "integers [N]: steps of each sequence; past them its state stays and the output is 0")
        ->type_name("FILE");
    command
        ->add_option("--zoneout-mask", o.zoneout_mask,
                     "u8 or bool, the shape of the output, for models of one layer: 1 takes the new state, 0 keeps the "
                     "old one")
        ->type_name("FILE");
  }

  void add_compare() {
    auto& o = compare_;
    auto* command = add("compare", "where float and integer model part", o, [this] { return compare(compare_); });
    command->add_option("FLOAT", o.float_model, "float model")->required();
    command->add_option("FIXED", o.fixed_model, "integer model made from it")->required();
    command->add_option("--data", o.data, "npy or npz with [T, C] or [T, N, C]; files, folders, patterns")
        ->required()
        ->type_name("DATA");
    add_source(command, o.source);
    add_device(command, o);
    command->add_flag("--ablate", o.ablate,
                      "also which tensors to widen: SQNR of the outputs with each set at 16 bits");
    add_number(command, "--part", o.part, "they part where the difference exceeds so many codes of the tensor's grid")
        ->type_name("CODES")
        ->capture_default_str();
    command->add_flag("--batch-first", o.sequences.batch_first, "the data is [N, T, C]");
    command->add_option("--lengths", o.sequences.lengths, "whole numbers [N]: the steps of each sequence")
        ->type_name("FILE");
    command->add_option("--state", o.sequences.h0, "first state: floats [layers * directions, N, H]")
        ->type_name("FILE");
    add_number(command, "--zoneout", o.zoneout, "probability of the float side: h' = P * h + (1 - P) * h'")
        ->type_name("P")
        ->capture_default_str();
    add_number(command, "--threads", o.threads, "0: one per processor")->type_name("N")->capture_default_str();
  }

  void add_verify() {
    auto& o = verify_;
    auto* command = add("verify",
                        "every kernel this machine, or its CUDA device, can run against the reference; "
                        "ISOBIT_REQUIRE=avx2,... fails when one was not compared",
                        o, [this] { return verify(verify_); });
    command->add_option("MODEL", o.model, "integer model; default: random ones");
    command->add_option("--layer", o.layer, "which GRU, where the file holds several")->type_name("NAME");
    add_device(command, o);
    command->add_option("--operation", o.operation, "gru, fp16_table (with softmax) or linear; default all")
        ->type_name("OP");
    add_number(command, "--outputs", o.outputs,
               "outputs to compare, at least, for each kernel; on a device of all models")
        ->type_name("N")
        ->capture_default_str();
    add_number(command, "--seed", o.seed, "seed of models and inputs")->type_name("N")->capture_default_str();
  }

  void add_fingerprint() {
    auto* command = add("fingerprint", "one hash an operation, the same on every machine", fingerprint_,
                        [this] { return fingerprint(fingerprint_); });
    add_device(command, fingerprint_);
    command->add_option("--kernel", fingerprint_.kernel, "the kernel to run; default the best")->type_name("NAME");
  }

  void add_supported() {
    auto* command = add("supported", "operations, dtypes, file types and kernels", supported_,
                        [this] { return supported(supported_); });
    add_device(command, supported_);
  }

  void add_bench() {
    auto& o = bench_;
    auto* command = add("bench", "times kernels on random models, one thread", o, [this] { return bench(bench_); });
    command->add_option("OP", o.operation, "gru, linear or table")->required();
    add_device(command, o);
    add_number(command, "--hidden", o.hidden, "hidden units, one or a list")->delimiter(',')->type_name("H");
    add_number(command, "--input", o.input, "inputs; default as hidden")->type_name("C");
    add_number(command, "--batch", o.batch, "sequences at once, one or a list")->delimiter(',')->type_name("N");
    add_number(command, "--steps", o.steps, "steps")->type_name("T")->capture_default_str();
    command
        ->add_option(
            "--mode", o.mode,
            "sequence: T steps a call; streaming: one step a call; two-states: streaming on a device, from one state "
            "to another in turn")
        ->delimiter(',')
        ->type_name("MODE");
    command->add_option("--bits", o.bits, "as in quantize; linear: 1, 2, 4 or 8, one or a list")
        ->type_name("SPEC")
        ->capture_default_str();
    command->add_option("--kernel", o.kernel, "kernels, one or a list; default the best")
        ->delimiter(',')
        ->type_name("NAME");
    add_number(command, "--min-time", o.min_time, "seconds a case, at least")->type_name("S")->capture_default_str();
    command->add_option("--function", o.function, "table: functions or saved tables, one or a list")
        ->delimiter(',')
        ->type_name("TABLE")
        ->capture_default_str();
    command->add_option("--dtype", o.dtype, "table: types of x and y, f16, bf16, f32 or a pair such as f32:f16")
        ->delimiter(',')
        ->type_name("TYPE")
        ->capture_default_str();
    add_table_source(command, o.source);
    add_number(command, "--elements", o.elements, "table: elements a call")->type_name("N")->capture_default_str();
    command->add_flag(
        "--all-kernels", o.all_kernels,
        "every kernel that can run here; linear, and gru on a device: exit status 1 when the one that is chosen takes "
        "over 5 % longer than the fastest");
    command->add_option("--shape", o.shape, "linear: KxN, inputs x outputs, one or a list")
        ->delimiter(',')
        ->type_name("KxN")
        ->capture_default_str();
    add_number(command, "--group", o.group, "linear: elements of K that share a scale; 0: all")
        ->type_name("G")
        ->capture_default_str();
    command
        ->add_option("--activations", o.activations,
                     "linear: float, int8, int8_asymmetric, static (8-bit codes in and out) or accumulators (static, "
                     "int32 out), one or a list")
        ->delimiter(',')
        ->type_name("KIND")
        ->capture_default_str();
    add_number(command, "--m", o.m, "linear: rows of x, one or a list")
        ->delimiter(',')
        ->type_name("M")
        ->capture_default_str();
    add_number(command, "--footprint", o.footprint,
               "linear: MiB of weights that take turns; 0: eight times the last-level cache")
        ->type_name("MIB")
        ->capture_default_str();
    command->add_flag("--repeat", o.repeat,
                      "linear: the same again for each line on standard input, for programs that time something else "
                      "in between; all weights stay in memory");
  }

  static void add_table_source(CLI::App* command, TableSourceOptions& source) {
    command->add_option("--model", source.model, "arithmetic of a built-in table: f32, nli_gpu or nli_cpu")
        ->type_name("MODEL")
        ->capture_default_str();
    command->add_option("--values", source.values, "values of a built-in table: f32 or f16")
        ->type_name("TYPE")
        ->capture_default_str();
  }

  void add_table() {
    CLI::App* table = app_.add_subcommand("table", "activation tables: fit, check, show, compare, export, run");
    table->require_subcommand(1);
    const char* const which = "a function whose table is built in (silu, exp, ...), or a file of isobit table fit";

    auto& fit = table_fit_;
    auto* command = add(
        "fit", "choose cut points and values of an FP16 table", fit, [this] { return table_fit(table_fit_); }, table);
    command->add_option("FUNCTION", fit.function, "name, or npy with 65536 float64: f at every float16 code")
        ->required();
    command->add_option("-o,--output", fit.output, "file to write (safetensors)")->required()->type_name("OUT");
    command->add_option("--model", fit.model, "arithmetic: f32, nli_gpu or nli_cpu")
        ->type_name("MODEL")
        ->capture_default_str();
    command->add_option("--values", fit.values, "type of the values: f32 or f16")
        ->type_name("TYPE")
        ->capture_default_str();
    command->add_option("--goal", fit.goal, "what is made small: max_ulp or mean_relative")
        ->type_name("GOAL")
        ->capture_default_str();
    command->add_option("--steps", fit.steps, "steps of each interval; 1,8x4,1 and 16x16 are others in use")
        ->type_name("LIST")
        ->capture_default_str();
    add_number(command, "--beta", fit.beta, "of swish")->type_name("B")->capture_default_str();
    command->add_option("--range", fit.range, "LOW:HIGH: a plain table over this range, without range reduction")
        ->type_name("RANGE");
    add_number(command, "--cut-points", fit.cut_points,
               "a published table: these cut points, values sampled from the function")
        ->delimiter(',')
        ->type_name("LIST");

    auto& check = table_check_;
    command = add(
        "check", "compute the certificates of tables again; exit status 1 when one is not true", check,
        [this] { return table_check(table_check_); }, table);
    command->add_option("FILE", check.tables, "saved tables, integer models");
    command->add_flag("--all", check.all, "the built-in tables, and what they promise");
    command->add_option("--model", check.model, "with --all: one or a list of f32, nli_gpu, nli_cpu")
        ->delimiter(',')
        ->type_name("MODEL")
        ->capture_default_str();
    command->add_option("--values", check.values, "with --all: one or both of f32, f16")
        ->delimiter(',')
        ->type_name("TYPE")
        ->capture_default_str();
    command->add_option("--exact", check.exact, "npy with the values of a function of one's own")->type_name("FILE");

    auto& show = table_show_;
    command = add(
        "show", "the error of a table over its inputs", show, [this] { return table_show(table_show_); }, table);
    command->add_option("TABLE", show.table, std::string(which) + ", or an integer model")->required();
    add_table_source(command, show.source);
    command->add_option("--svg", show.svg, "picture to write; needs gnuplot")->type_name("OUT");
    command->add_option("--exact", show.exact, "npy with the values of a function of one's own")->type_name("FILE");
    command->add_option("--layer", show.layer, "which GRU, where an integer model holds several")->type_name("NAME");
    command->add_option("--gate", show.gate, "table of an integer model: l0.u, l0.r, l0.n, l1.u, ...")
        ->type_name("GATE");

    auto& compare = table_compare_;
    command = add(
        "compare", "inputs at which two tables differ", compare, [this] { return table_compare(table_compare_); },
        table);
    command->add_option("FIRST", compare.first, which)->required();
    command->add_option("SECOND", compare.second, which)->required();
    add_table_source(command, compare.source);

    auto& out = table_export_;
    command = add(
        "export", "a table as C source or memory image", out, [this] { return table_export(table_export_); }, table);
    command->add_option("TABLE", out.table, which)->required();
    add_table_source(command, out.source);
    command->add_option("--c", out.c, "folder for NAME.h, NAME.c and NAME_test.c: C99 without libm")->type_name("OUTDIR");
    command->add_option("--hex", out.hex, "file for the memory image, one word a line")->type_name("OUT");
    command->add_option("--name", out.name, "C identifier; default isobit_FUNCTION")->type_name("NAME");

    auto& run = table_run_;
    command = add(
        "run", "apply a table to an array", run, [this] { return table_run(table_run_); }, table);
    command->add_option("TABLE", run.table, std::string(which) + ", or softmax (last dimension)")->required();
    command->add_option("INPUT", run.input, "npy with f16 or f32, safetensors with bf16 too")->required();
    command->add_option("-o,--output", run.output, "npy to write")->required()->type_name("OUT");
    add_table_source(command, run.source);
    command->add_option("--dtype", run.dtype, "f16 or f32; default that of the input (f32 for bf16)")
        ->type_name("TYPE");
    add_device(command, run);
    command->add_option("--kernel", run.kernel, "isobit supported lists them; default the fastest")->type_name("NAME");
    add_number(command, "--threads", run.threads, "0: one per processor")->type_name("N")->capture_default_str();
  }

  void add_help() {
    auto* command = add("help", "what a verb does, its options and an example", help_, [this]() -> Result<Outcome> {
      Outcome out;
      ISOBIT_ASSIGN_OR_RETURN(out.text, help_text(app_, words_));
      out.json.set("text", out.text);
      return out;
    });
    command->add_option("VERB", words_, "one verb, as in: table fit; default the list of all");
  }

  void add_completion() {
    auto* command = add("completion", "a script that lets a shell complete verbs and options", completion_,
                        [this]() -> Result<Outcome> {
                          Outcome out;
                          ISOBIT_ASSIGN_OR_RETURN(out.text, completion_script(app_, words_.front()));
                          out.json.set("text", out.text);
                          return out;
                        });
    command->add_option("SHELL", words_, "bash, zsh or fish")->required()->expected(1);
  }

  CLI::App& app_;
  std::string verb_;
  const CommonOptions* common_ = nullptr;
  std::function<Result<Outcome>()> action_;
  InspectOptions inspect_;
  QuantizeOptions quantize_;
  TuneOptions tune_;
  PackOptions pack_;
  MatmulOptions matmul_;
  RunOptions run_;
  CompareOptions compare_;
  VerifyOptions verify_;
  FingerprintOptions fingerprint_;
  DeviceOptions supported_;
  BenchOptions bench_;
  TableFitOptions table_fit_;
  TableCheckOptions table_check_;
  TableShowOptions table_show_;
  TableCompareOptions table_compare_;
  TableExportOptions table_export_;
  TableRunOptions table_run_;
  CommonOptions help_, completion_;
  std::vector<std::string> words_;  // of help and completion
};

int main_function(int argc, char** argv) {
  // A write beyond `ulimit -f` then fails like one to a full disk, with a message and without leftovers.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("Integer GRUs and activation tables with the same bits everywhere.", "isobit");
  app.set_version_flag("-v,-V,--version", "isobit " ISOBIT_VERSION);
  app.require_subcommand(1);
  Commands commands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0 && mistyped_verb(app).empty()) return app.exit(error);  // --help, --version
    std::fputs(usage_error(app, error).c_str(), stderr);
    return kExitBadUsage;
  }
  // The library reports by Status; only an allocation can still throw.
  try {
    return commands.execute();
  } catch (const std::bad_alloc&) {
    return commands.fail("out of memory; smaller files or a smaller --chunk need less");
  }
}

}  // namespace
}  // namespace isobit::tool

int main(int argc, char** argv) { return isobit::tool::main_function(argc, argv); }
