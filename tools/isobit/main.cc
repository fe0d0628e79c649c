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
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "calibrate.h"
#include "help.h"
#include "isobit/tune.h"
#include "models.h"
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
std::string number_problem(const std::string& name, const std::string& text) {
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
  return name + " " + text + ": expected " + expected;
}

std::string message_of(const Status& status) { return status.message(); }
template <typename T>
std::string message_of(const Result<T>& result) {
  return result.status().message();
}
/// For check(): what `parse` refuses. A wrong word explains more than an argument that is missing beside it.
template <typename Parse>
auto refused_by(Parse parse) {
  return [parse](const std::string& text) { return message_of(parse(text)); };
}
/// The same of a word of options that are parsed together.
template <typename Options, typename Parse>
auto refused_in(std::string Options::*word, Parse parse) {
  return refused_by([word, parse](const std::string& text) {
    Options options;
    options.*word = text;
    return parse(options);
  });
}
auto refused_setting(std::string GruSettings::*word) {
  return refused_in(word, [](const GruSettings& settings) { return settings.quantization(); });
}
auto refused_table(bool or_softmax) {
  return refused_by([or_softmax](const std::string& text) { return check_table_name(text, or_softmax); });
}

/// Whether there is a default to show in the help.
bool has_default(const auto& value) { return std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>; }
bool has_default(const std::string& text) { return !text.empty(); }
template <typename T>
bool has_default(const std::vector<T>& list) {
  return !list.empty();
}

/// A verb whose options are being added; those that several verbs have are added by one function each.
class Verb {
 public:
  explicit Verb(CLI::App* command) : command_(command) {}

  /// An argument without a name, required unless the caller says otherwise.
  template <typename T>
  CLI::Option* word(const std::string& name, T& value, const std::string& help) {
    return command_->add_option(name, value, help)->required();
  }
  /// An option with a value, whose place in the help has the name `type`. Numbers are checked.
  template <typename T>
  CLI::Option* value(const std::string& name, T& value, const std::string& type, const std::string& help) {
    CLI::Option* option = command_->add_option(name, value, help)->type_name(type);
    if constexpr (std::is_arithmetic_v<typename NumberOf<T>::Type>) {
      option->check([name](const std::string& text) { return number_problem<T>(name, text); });
    }
    if (has_default(value)) option->capture_default_str();
    return option;
  }
  /// The same of values between commas.
  template <typename T>
  CLI::Option* list(const std::string& name, std::vector<T>& values, const std::string& type, const std::string& help) {
    return value(name, values, type, help)->delimiter(',');
  }
  CLI::Option* flag(const std::string& name, bool& value, const std::string& help) {
    return command_->add_flag(name, value, help);
  }

  /// Of an output that need not be: "" is no way to leave it out.
  CLI::Option* output(const std::string& option, std::string& path, const std::string& help) {
    return value(option, path, "OUT", help)->check([option](const std::string& text) {
      return text.empty() ? option + " must not be empty" : "";
    });
  }
  CLI::Option* output(std::string& path, const std::string& help) { return value("-o,--output", path, "OUT", help); }
  void threads(int& count) { value("--threads", count, "N", "0: one per processor"); }
  void device(DeviceOptions& options, const std::string& but = "") {
    value("--device", options.device, "DEVICE", "cpu, or cuda, cuda:N: CUDA device 0, N; the bytes are the same" + but);
  }
  void layer(std::string& name) { value("--layer", name, "NAME", "which GRU, where the file holds several"); }
  void batch_first(bool& is_set) {
    flag("--batch-first", is_set, "arrays of three dimensions are [N, T, C], the outputs too");
  }
  /// What is said of data beside it.
  void sequences(DataOptions& o) {
    batch_first(o.batch_first);
    value("--lengths", o.lengths, "FILE", "integers [N]: steps of each sequence; what follows is padding");
    value("--state", o.h0, "FILE", "first states, floats [layers * directions, N, H]");
  }
  void zoneout(float& probability) {
    value("--zoneout", probability, "P", "probability of the float side: h' = P * h + (1 - P) * h'");
  }
  void exact(std::string& path) { value("--exact", path, "FILE", "npy with the values of a function of one's own"); }
  void table_source(TableSourceOptions& source) {
    value("--model", source.model, "MODEL", "arithmetic of a built-in table: f32, nli_gpu or nli_cpu")
        ->check(refused_by(parse_fp16_model));
    value("--values", source.values, "TYPE", "values of a built-in table: f32 or f16")
        ->check(refused_by(parse_value_type));
  }

  /// How floats become low-bit weights.
  void form(FormOptions& o) {
    value("--bits", o.bits, "N", "of a code: 1, 2, 4 (default) or 8");
    value("--group", o.group, "N", "weights that share a scale, default 64; 0, or more than a row: a row");
    value("--kind", o.kind, "KIND", "symmetric (default), zero_point or offset");
    value("--method", o.method, "METHOD",
          "mse (default at 1 and 2 bits), absmax (symmetric; its default at 4 and 8), minmax (the others')");
    value("--scales", o.scales, "TYPE", "type of scales and offsets: f32 (default), f16 or bf16");
    value("--weight-layout", o.weight_layout, "LAYOUT",
          "floats of 4 dimensions are weights of convolutions: oihw [O, C / groups, R, S] (PyTorch, ONNX), ohwi, or "
          "iohw [C, O / groups, R, S] (there, of transposed ones); --group counts their channels, 0: all of an output");
  }
  /// What matmul and conv share.
  void layer_options(LayerOptions& o, const std::string& x, const std::string& y) {
    word("X", o.input, "npy " + x + ": float16, float32, float64");
    output(o.output, "npy " + y + " to write: the type of X, float32 for float64")->required();
    threads(o.threads);
    value("--bias", o.bias, "NAME", "array of the same file to add, a number an output");
    value("--clamp", o.clamp, "ACT", "of the result: none, relu, relu6 or LOW:HIGH");
  }

  /// How a float model is read.
  void source(FloatModelOptions& source) {
    value("--layer", source.layer, "NAME",
          "prefix of the GRU's arrays, where a file holds several; NAME=W,R[,BW,BR] for arrays with names of "
          "their own (NAME_l1, NAME_l0_reverse, ... for more layers and directions; NAME=W,R,B: both biases in B); of "
          "an ONNX model a GRU node, or A,B for nodes of which each feeds the next")
        ->allow_extra_args(false);
    value("--gate-order", source.gate_order, "ORDER",
          "gate order of a float model: pytorch, urn or onnx; default: that of its names")
        ->check(refused_in(&FloatModelOptions::gate_order, parse_source));
    value("--layout", source.layout, "LAYOUT",
          "of a float model's matrices: rows, W [3H, C] (PyTorch, ONNX), or columns, W [C, 3H] (Keras, Haste); "
          "default: what the shapes say")
        ->check(refused_in(&FloatModelOptions::layout, parse_source));
    value("--reset", source.reset, "WHEN",
          "reset variant of a float model: after (default) or before; after overrules a file that says otherwise")
        ->check(refused_in(&FloatModelOptions::reset, parse_source));
  }

  /// What quantize and tune begin with. Returns --validate.
  CLI::Option* model_and_data(CalibrationOptions& o, const std::string& validate) {
    word("MODEL", o.model, "float model: npz, safetensors or ONNX");
    value("--calibrate", o.data, "DATA", "npy or npz with [T, C] or [T, N, C]; files, folders, patterns")->required();
    output(o.output, "integer model to write (safetensors)");
    return value("--validate", o.validate, "DATA", validate);
  }
  /// What they end with: how model and data are read.
  void reading(CalibrationOptions& o) {
    value("--rounding", o.rounding, "MODE", "nearest_even, nearest_up, nearest_away or floor")
        ->check(refused_by(parse_rounding));
    source(o.source);
    sequences(o.of_data);
    zoneout(o.of_data.zoneout);
    auto* validate = command_->get_option("--validate");
    value("--validate-lengths", o.validate_lengths, "FILE", "the same of --validate")->needs(validate);
    value("--validate-state", o.validate_h0, "FILE", "the same of --validate")->needs(validate);
    threads(o.threads);
  }

 private:
  CLI::App* command_;
};

class Commands {
 public:
  explicit Commands(CLI::App& app) : app_(app) {
    add_inspect();
    add_quantize();
    add_tune();
    add_pack();
    add_matmul();
    add_conv();
    add_run();
    add_export();
    add_compare();
    add_verify();
    add_bench();
    add_table();
    add_help();
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

  /// A subcommand with the options of all verbs; `run` gets what was parsed.
  template <typename Options>
  std::pair<Verb, Options&> add(const std::string& name, const std::string& help,
                                std::type_identity_t<std::function<Result<Outcome>(const Options&)>> run,
                                CLI::App* parent = nullptr) {
    CLI::App* command = (parent != nullptr ? parent : &app_)->add_subcommand(name, help);
    const auto options = std::make_shared<Options>();
    command->add_flag("--json", options->json, "one JSON document on standard output");
    command->add_flag("--quiet", options->quiet, "no text and no progress, errors only");
    command->callback([this, parent, name, options, run] {
      verb_ = (parent != nullptr ? parent->get_name() + " " : "") + name;
      common_ = options.get();
      action_ = [options, run] { return run(*options); };
    });
    return {Verb(command), *options};
  }

  void add_inspect() {
    auto [verb, o] = add<InspectOptions>("inspect", "what a file of weights holds", inspect);
    verb.word(
        "FILE", o.file,
        "float model (npz, safetensors, ONNX), integer model, FP16 table, low-bit weights, GPTQ, AWQ or GGUF file");
    auto* tensor =
        verb.value("--tensor", o.tensor, "NAME", "tensor of a GGUF file or of low-bit weights to write as float32");
    auto* output = verb.output(o.output, "npy to write");
    verb.flag("--full", o.full, "integer models: rescales and the whole overflow proof, too");
    tensor->needs(output);
    output->needs(tensor);
    verb.source(o.source);
  }

  void add_quantize() {
    auto [verb, o] = add<QuantizeOptions>("quantize", "float model and data in, integer model out", quantize);
    verb.model_and_data(o, "data to measure the outputs' SQNR on; default the last tenth of --calibrate");
    verb.value("--bits", o.bits, "SPEC",
               "small, balanced, precise, or a list of widths where later entries win: 8,linear=16,l1.h=16")
        ->check(refused_setting(&GruSettings::bits));
    verb.value("--method", o.method, "METHOD", "minmax, percentile:P, sqnr or ema:A, or a list: minmax,x=ema:0.9")
        ->check(refused_setting(&GruSettings::method));
    verb.value("--scale", o.scale, "KIND", "pow2 or real")->check(refused_by(parse_scale));
    verb.value("--table", o.table, "KIND",
               "direct, interpolated or segments:N; default: by the width of its input; or a list, as in "
               "direct,l1=segments:16")
        ->check(refused_setting(&GruSettings::table));
    verb.value("--reason", o.reason, "TEXT", "why these settings: kept in the model, printed by isobit inspect");
    verb.flag("--dry-run", o.dry_run, "calibrate and report, write nothing");
    verb.reading(o);
  }

  void add_tune() {
    auto [verb, o] =
        add<TuneOptions>("tune", "find bit widths, methods, scales and tables for a quality or a size", tune);
    verb.model_and_data(o, "other data, to measure quality on")->required();
    auto* target = verb.value("--target", o.target, "DB",
                              "least SQNR in dB of every layer's output, at the fewest bytes; default 35; or of "
                              "--metric");
    auto* bytes = verb.value("--max-bytes", o.max_bytes, "N", "most bytes of the model, at the best quality");
    auto* like = verb.value("--like", o.like, "SPEC",
                            "widths as in quantize --bits: at most the bytes of its tensors, at least its quality")
                     ->check(refused_setting(&GruSettings::bits));
    target->excludes(bytes)->excludes(like);
    bytes->excludes(like);
    verb.value("--metric", o.metric, "COMMAND",
               "your own quality, higher is better: COMMAND FLOAT.npz INTEGER.npz MODEL prints a number last")
        ->check([](const std::string& text) { return text.empty() ? "--metric must not be empty" : ""; })
        ->excludes(bytes)
        ->excludes(like);
    verb.output("--svg", o.svg, "picture of quality over bytes to write; needs gnuplot");
    verb.output("--html", o.html, "report to write: the front of the search, the chosen model");
    verb.value("--method", o.method, "METHOD", "methods as in quantize; default: searched")
        ->check(refused_setting(&GruSettings::method));
    verb.value("--scale", o.scale, "KIND", "pow2 or real; default: searched, pow2 preferred")
        ->check(refused_by(parse_scale));
    verb.value("--table", o.table, "KIND", "tables as in quantize; default: searched")
        ->check(refused_setting(&GruSettings::table));
    verb.flag("--dry-run", o.dry_run, "search and report, write no model");
    verb.reading(o);
  }

  void add_pack() {
    auto [verb, o] = add<PackOptions>(
        "pack", "weights of 1, 2, 4 and 8 bits: from floats, or imported from GGUF, GPTQ and AWQ", pack);
    verb.word("MODEL", o.model,
              "npz, safetensors, model.safetensors.index.json or GGUF; quantised tensors are imported as they are");
    verb.output(o.output, "low-bit weights to write (safetensors)");
    verb.form(o.form);
    verb.value("--groups", o.groups, "N", "of convolutions with --weight-layout iohw, default 1");
    verb.value("--include", o.include, "GLOB",
               "matrices of floats to quantise, a pattern such as '*.mlp.*', once for each; default all, but none "
               "where the model holds quantised tensors")
        ->allow_extra_args(false);
    verb.value("--exclude", o.exclude, "GLOB",
               "tensors neither to quantise nor to import, also of types that cannot be read: what the result can hold "
               "stays as it is, quantised tensors of GGUF are left out")
        ->allow_extra_args(false);
    verb.value("--checkpoint-format", o.checkpoint_format, "FORMAT",
               "gptq, gptq_v2 or awq: how GPTQ and AWQ tensors are stored, whatever a JSON file beside the model says; "
               "--bits and --group then say it, too");
    verb.flag("--requantize", o.requantize, "quantise imported matrices again, too");
    verb.flag("--dry-run", o.dry_run, "all of it but writing: the report, and what would be refused");
    verb.threads(o.threads);
  }

  void add_matmul() {
    auto [verb, o] = add<MatmulOptions>("matmul", "a linear layer of low-bit weights on rows of an array", matmul);
    verb.word("WEIGHTS", o.weights, "FILE:TENSOR, a matrix of isobit pack; FILE where it holds one");
    verb.layer_options(o, "[..., K]", "[..., N]");
    verb.device(o, " but for --activations float");
    verb.value("--activations", o.activations, "KIND",
               "float; int8 or int8_asymmetric: each group of a row becomes 8 bits, the same bytes everywhere; "
               "static: 8-bit codes in and out, for 8-bit symmetric weights with one group a row");
    verb.value("--kernel", o.kernel, "NAME",
               "int8_avx2 and so on, as isobit supported lists them, or what follows the operation in such a name, "
               "as in avx2; default the best");
    verb.value("--input-range", o.input_range, "RANGE",
               "static: LOW:HIGH of X's codes; default least and largest of X");
    verb.value("--output-range", o.output_range, "RANGE",
               "static: LOW:HIGH of the result's codes; default least and largest result");
    verb.flag("--codes", o.codes, "static: write the codes of the result instead of floats");
  }

  void add_conv() {
    auto [verb, o] = add<ConvOptions>("conv", "a convolution of low-bit weights on images of an array", conv);
    verb.word("WEIGHTS", o.weights,
              "FILE:TENSOR, weights of isobit pack, or floats of 4 dimensions that --weight-layout says how to read; "
              "FILE where it holds one");
    verb.layer_options(o, "[B, H, W, C]", "[B, P, Q, O]");
    verb.value("--activations", o.activations, "KIND",
               "float; int8 or int8_asymmetric: each group of a pixel's channels becomes 8 bits; int8_per_image: each "
               "image, for symmetric weights with one group a row; of int8 kinds the same bytes everywhere");
    verb.value("--kernel", o.kernel, "NAME", "reference, scalar, avx2, avxvnni, avx512vnni or amx; default the best");
    verb.value("--layout", o.layout, "LAYOUT", "of X and Y: nhwc, or nchw, [B, C, H, W] and [B, O, P, Q]");
    verb.list("--stride", o.stride, "N", "of rows and columns, or ROWS,COLUMNS")->allow_extra_args(false);
    verb.list("--dilation", o.dilation, "N", "the same")->allow_extra_args(false);
    verb.list("--padding", o.padding, "N", "all sides; ROWS,COLUMNS; TOP,BOTTOM,LEFT,RIGHT")->allow_extra_args(false);
    verb.list("--output-padding", o.output_padding, "N", "transposed: outputs beyond the last")
        ->allow_extra_args(false);
    verb.value("--groups", o.groups, "N", "of channels; default 1, or what weights in iohw were packed with");
    verb.flag("--transposed", o.transposed, "a transposed convolution, as weights in iohw always have");
    verb.form(o.form);
  }

  void add_run() {
    auto [verb, o] = add<RunOptions>("run", "run an integer model", run);
    verb.word("MODEL", o.model, "integer model");
    verb.word("INPUT", o.input, "npy or npz with [T, C] or [T, N, C]");
    verb.output(o.output, "npy (one array) or npz to write")->required();
    verb.layer(o.layer);
    verb.device(o);
    verb.value("--kernel", o.kernel, "NAME",
               "reference, scalar, avx2, avxvnni, avx512vnni or amx, or one of the device (isobit supported lists "
               "them); default the best");
    verb.threads(o.threads);
    verb.flag("--integer", o.integer, "codes in, codes out");
    verb.value("--state", o.state, "IN", "first state: a file of --save-state, or floats [layers * directions, N, H]");
    verb.output("--save-state", o.save_state, "npz for the codes of the last state");
    verb.value("--chunk", o.chunk, "T", "steps a call, 0: isobit's choice; the bytes do not depend on it");
    verb.batch_first(o.batch_first);
    verb.value("--lengths", o.lengths, "FILE",
               "integers [N]: steps of each sequence; past them its state stays and the output is 0");
    verb.value("--zoneout-mask", o.zoneout_mask, "FILE",
               "u8 or bool, the shape of the output, for models of one layer: 1 takes the new state, 0 keeps the "
               "old one");
  }

  void add_export() {
    CLI::App* exporter = app_.add_subcommand("export", "a model as source code: c");
    exporter->require_subcommand(1);
    auto [verb, o] = add<ExportOptions>("c",
                                        "C99 with the same bytes, for microcontrollers: integers only, no heap; NAME.h, "
                                        "NAME.c, NAME_data.c and NAME.cmake",
                                        export_c, exporter);
    verb.word("MODEL", o.model, "integer GRU, linear layer or convolution of static codes, or FP16 table");
    verb.output(o.output, "folder to write; one that does not exist or is empty")->required();
    verb.layer(o.layer);
    verb.value("--name", o.name, "NAME", "C identifier that all names begin with; default from the model's name");
    verb.value("--target", o.target, "TARGET",
               "generic, cortex-m3, cortex-m4, cortex-m7, cortex-m33 (the last three with SMLAD) or cortex-m55 (MVE)");
    verb.value("--core", o.core, "CORE",
               "count code, stack and instructions on this Cortex-M, with arm-none-eabi-gcc and qemu-system-arm; default "
               "that of --target");
    verb.value("--check", o.check, "DATA",
               "npy with floats: compile with $CC (default cc), run here and compare with isobit run; exit status 1 at "
               "the first difference");
    verb.value("--gate", o.gate, "GATE", "only this activation table of a GRU: l0.u, l0.r, l0.n, l1.u, ...");
    verb.flag("--float-entry", o.float_entry, "a GRU: also a step that takes and gives float32");
    verb.value("--selftest-steps", o.selftest_steps, "T", "steps that NAME_selftest compares");
    verb.flag("--allow-large-tables", o.allow_large_tables, "activation tables above 16 KB");
    verb.flag("--force", o.force, "overwrite the files of an earlier export");
  }

  void add_compare() {
    auto [verb, o] = add<CompareOptions>("compare", "where float and integer model part", compare);
    verb.word("FLOAT", o.float_model, "float model");
    verb.word("FIXED", o.fixed_model, "integer model made from it");
    verb.value("--data", o.data, "DATA", "npy or npz with [T, C] or [T, N, C]; files, folders, patterns")->required();
    verb.source(o.source);
    verb.device(o);
    verb.flag("--ablate", o.ablate, "also which tensors to widen: SQNR of the outputs with each set at 16 bits");
    verb.output("--html", o.html, "report to write: tensors, histograms, errors over time, tables");
    verb.value("--part", o.part, "CODES", "they part where the difference exceeds so many codes of the tensor's grid");
    verb.sequences(o.sequences);
    verb.zoneout(o.zoneout);
    verb.threads(o.threads);
  }

  void add_verify() {
    auto [verb, o] = add<VerifyOptions>("verify",
                                        "every kernel this machine, or its CUDA device, can run against the reference; "
                                        "ISOBIT_REQUIRE=avx2,... fails when one was not compared",
                                        verify);
    verb.word("MODEL", o.model, "integer model; default: random ones")->required(false);
    verb.layer(o.layer);
    verb.device(o);
    verb.value("--operation", o.operation, "OP", "gru, fp16_table (with softmax), linear or conv; default all");
    verb.value("--outputs", o.outputs, "N", "outputs to compare, at least, for each kernel; on a device of all models");
    verb.value("--seed", o.seed, "N", "seed of models and inputs");

    auto [hash, h] =
        add<FingerprintOptions>("fingerprint", "one hash an operation, the same on every machine", fingerprint);
    hash.device(h);
    hash.value("--kernel", h.kernel, "NAME", "the kernel to run; default the best");

    auto [list, s] = add<DeviceOptions>("supported", "operations, dtypes, file types and kernels", supported);
    list.device(s);
  }

  void add_bench() {
    auto [verb, o] = add<BenchOptions>("bench", "times kernels on random models, one thread", bench);
    verb.word("OP", o.operation, "gru, linear, conv or table");
    verb.device(o);
    verb.list("--hidden", o.hidden, "H", "hidden units, one or a list");
    verb.value("--input", o.input, "C", "inputs; 0: as hidden");
    verb.list("--batch", o.batch, "N", "sequences or images at once, one or a list");
    verb.value("--steps", o.steps, "T", "steps");
    verb.list("--mode", o.mode, "MODE",
              "sequence: T steps a call; streaming: one step a call; two-states: streaming on a device, from one state "
              "to another in turn");
    verb.value("--bits", o.bits, "SPEC", "as in quantize; linear: 1, 2, 4 or 8, one or a list");
    verb.list("--kernel", o.kernel, "NAME", "kernels, one or a list; default the best");
    verb.value("--min-time", o.min_time, "S", "seconds a case, at least");
    verb.list("--function", o.function, "TABLE", "table: functions or saved tables, one or a list");
    verb.list("--dtype", o.dtype, "TYPE", "table: types of x and y, f16, bf16, f32 or a pair such as f32:f16");
    verb.table_source(o.source);
    verb.value("--elements", o.elements, "N", "table: elements a call");
    verb.flag("--all-kernels", o.all_kernels,
              "every kernel that can run here; linear, and gru on a device: exit status 1 when the one that is chosen "
              "takes over 5 % longer than the fastest");
    verb.list("--shape", o.shape, "KxN", "linear: KxN, inputs x outputs, one or a list");
    verb.value("--group", o.group, "G", "linear: elements of K that share a scale; 0: all");
    verb.list("--activations", o.activations, "KIND",
              "linear: float, int8, int8_asymmetric, static (8-bit codes in and out) or accumulators (static, "
              "int32 out), one or a list");
    verb.list("--conv", o.conv, "SHAPE",
              "conv: HxWxC:O:R[:STRIDE[:GROUPS[:DILATION]]], an R x R kernel, one or a list");
    verb.list("--m", o.m, "M", "linear: rows of x, one or a list");
    verb.value("--footprint", o.footprint, "MIB",
               "linear: MiB of weights that take turns; 0: eight times the last-level cache");
    verb.flag("--repeat", o.repeat,
              "linear: the same again for each line on standard input, for programs that time something else "
              "in between; all weights stay in memory");
  }

  void add_table() {
    CLI::App* table = app_.add_subcommand("table", "activation tables: fit, check, show, compare, export, run");
    table->require_subcommand(1);
    const std::string which = "a function whose table is built in (silu, exp, ...), or a file of isobit table fit";

    auto [fit, f] = add<TableFitOptions>("fit", "choose cut points and values of an FP16 table", table_fit, table);
    fit.word("FUNCTION", f.function, "name, or npy with 65536 float64: f at every float16 code")
        ->check(refused_by(check_function_name));
    fit.output(f.output, "file to write (safetensors)")->required();
    fit.value("--model", f.model, "MODEL", "arithmetic: f32, nli_gpu or nli_cpu")->check(refused_by(parse_fp16_model));
    fit.value("--values", f.values, "TYPE", "type of the values: f32 or f16")->check(refused_by(parse_value_type));
    fit.value("--goal", f.goal, "GOAL", "what is made small: max_ulp or mean_relative");
    fit.value("--steps", f.steps, "LIST", "steps of each interval; 1,8x4,1 and 16x16 are others in use");
    fit.value("--beta", f.beta, "B", "of swish");
    fit.value("--range", f.range, "RANGE", "LOW:HIGH: a plain table over this range, without range reduction");
    fit.list("--cut-points", f.cut_points, "LIST",
             "a published table: these cut points, values sampled from the function");

    auto [check, c] = add<TableCheckOptions>(
        "check", "compute the certificates of tables again; exit status 1 when one is not true", table_check, table);
    check.word("FILE", c.tables, "saved tables, integer models")->required(false);
    check.flag("--all", c.all, "the built-in tables, and what they promise");
    check.list("--model", c.model, "MODEL", "with --all: one or a list of f32, nli_gpu, nli_cpu")
        ->check(refused_by(parse_fp16_model));
    check.list("--values", c.values, "TYPE", "with --all: one or both of f32, f16")
        ->check(refused_by(parse_value_type));
    check.exact(c.exact);

    auto [show, s] = add<TableShowOptions>("show", "the error of a table over its inputs", table_show, table);
    show.word("TABLE", s.table, which + ", or an integer model")->check(refused_table(false));
    show.table_source(s.source);
    show.output("--svg", s.svg, "picture to write; needs gnuplot");
    show.exact(s.exact);
    show.value("--layer", s.layer, "NAME", "which GRU, where an integer model holds several");
    show.value("--gate", s.gate, "GATE", "table of an integer model: l0.u, l0.r, l0.n, l1.u, ...");

    auto [compare, d] = add<TableCompareOptions>("compare", "inputs at which two tables differ", table_compare, table);
    compare.word("FIRST", d.first, which)->check(refused_table(false));
    compare.word("SECOND", d.second, which)->check(refused_table(false));
    compare.table_source(d.source);

    auto [out, e] = add<TableExportOptions>("export", "a table as C source or memory image", table_export, table);
    out.word("TABLE", e.table, which)->check(refused_table(false));
    out.table_source(e.source);
    out.value("--c", e.c, "OUTDIR", "folder for NAME.h, NAME.c and NAME_test.c: C99 without libm");
    out.output("--hex", e.hex, "file for the memory image, one word a line");
    out.value("--name", e.name, "NAME", "C identifier; default isobit_FUNCTION");

    auto [run, r] = add<TableRunOptions>("run", "apply a table to an array", table_run, table);
    run.word("TABLE", r.table, which + ", or softmax (last dimension)")->check(refused_table(true));
    run.word("INPUT", r.input, "npy with f16 or f32, safetensors with bf16 too");
    run.output(r.output, "npy to write")->required();
    run.table_source(r.source);
    run.value("--dtype", r.dtype, "TYPE", "f16 or f32; default that of the input (f32 for bf16)");
    run.device(r);
    run.value("--kernel", r.kernel, "NAME", "isobit supported lists them; default the fastest");
    run.threads(r.threads);
  }

  /// Verbs about the command itself, which say some text.
  void add_help() {
    struct WordOptions : CommonOptions {
      std::vector<std::string> words;
    };
    const auto said = [](const Result<std::string>& text) -> Result<Outcome> {
      if (!text.ok()) return text.status();
      Outcome out;
      out.text = *text;
      out.json.set("text", *text);
      return out;
    };
    auto [help, h] = add<WordOptions>("help", "what a verb does, its options and an example",
                                      [this, said](const WordOptions& o) { return said(help_text(app_, o.words)); });
    help.word("VERB", h.words, "one verb, as in: table fit; default the list of all")->required(false);
    auto [completion, c] =
        add<WordOptions>("completion", "a script that lets a shell complete verbs and options",
                         [this, said](const WordOptions& o) { return said(completion_script(app_, o.words.front())); });
    completion.word("SHELL", c.words, "bash, zsh or fish")->expected(1);
  }

  CLI::App& app_;
  std::string verb_;
  const CommonOptions* common_ = nullptr;
  std::function<Result<Outcome>()> action_;
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
