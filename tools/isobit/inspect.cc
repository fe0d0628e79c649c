// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/gguf.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/report.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

/// Writes a tensor of floats. `type`: what it was; empty: not said.
Result<Outcome> export_tensor(const InspectOptions& options, const Array& tensor, const std::string& type) {
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, tensor));
  Outcome out;
  out.json.set("file", options.file).set("tensor", options.tensor);
  if (!type.empty()) out.json.set("type", type);
  out.json.set("shape", tensor.shape).set("output", options.output);
  out.text = options.output + ": " + escaped(options.tensor) + ", " + list_text(tensor.shape) +
             (type.empty() ? "" : ", " + type) + " as float32\n";
  return out;
}

/// --tensor of a GGUF file or of low-bit weights.
Result<Outcome> export_from(const InspectOptions& options, const ArrayReader& file) {
  if (file.gguf() != nullptr) {
    ISOBIT_ASSIGN_OR_RETURN(const Array array, file.gguf()->read(options.tensor));
    return export_tensor(options, Array::copy_of(array.to_float().data(), array.shape),
                         file.gguf()->find_tensor(options.tensor)->type);
  }
  if (file.kind() != FileKind::kLowBit)
    return bad_option(options.file + ": is neither a GGUF file nor low-bit weights; --tensor " + options.tensor +
                      " is for those only");
  ISOBIT_ASSIGN_OR_RETURN(const LowBitFile content, load_low_bit(file));
  const Result<Array> array = low_bit_tensor(content, options.tensor);
  if (!array.ok()) return bad_option(options.file + ": " + array.status().message());
  return export_tensor(options, *array, "");
}

}  // namespace

Result<Outcome> inspect(const InspectOptions& options) {
  FileClaims files;
  if (!options.output.empty()) ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kTensor, files));
  ISOBIT_RETURN_IF_ERROR(claim_checkpoint(options.file, "FILE", files));
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(options.file));
  const FloatModelOptions& source = options.source;
  if (file.gguf() != nullptr &&
      !(source.layer.empty() && source.gate_order.empty() && source.layout.empty() && source.reset.empty()))
    return bad_option(options.file +
                      ": is a GGUF file; --layer, --gate-order, --layout and --reset are for float models");
  if (!options.tensor.empty()) return export_from(options, file);
  ISOBIT_ASSIGN_OR_RETURN(const GruLoadOptions load, parse_source(source));
  ISOBIT_ASSIGN_OR_RETURN(const Description description, describe_file(file, {.load = load, .full = options.full}));
  Outcome out = Outcome().add(description);
  const bool is_integer = file.kind() == FileKind::kGruModels || file.kind() == FileKind::kOtherSaved;
  if (is_integer && !options.full) out.text += "\n--full shows rescales and the whole overflow proof\n";
  return out;
}

}  // namespace isobit::tool
