// SPDX-License-Identifier: Apache-2.0
// isobit pack: float weights to low bits, and low-bit weights of others to the saved form.
#include "isobit/pack.h"

#include <optional>
#include <string>
#include <utility>

#include "isobit/files.h"
#include "isobit/parallel.h"
#include "isobit/report.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

std::optional<Dtype> scales_from_string(std::string_view text) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
    if (text == to_string(dtype)) return dtype;
  return std::nullopt;
}

Result<isobit::PackOptions> parse_options(const PackOptions& options) {
  isobit::PackOptions out{.bits = options.bits,
                          .group = options.group,
                          .include = options.include,
                          .exclude = options.exclude,
                          .requantize = options.requantize};
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--kind", options.kind, low_bit_kind_from_string,
                                             {"symmetric", "zero_point", "offset"}, out.kind));
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--method", options.method, low_bit_method_from_string,
                                             {"absmax", "minmax", "mse"}, out.method));
  ISOBIT_RETURN_IF_ERROR(
      parse_word_if_given("--scales", options.scales, scales_from_string, {"f32", "f16", "bf16"}, out.scales));
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--checkpoint-format", options.checkpoint_format,
                                             checkpoint_format_from_string, {"gptq", "gptq_v2", "awq"},
                                             out.checkpoint_format));
  return out;
}

}  // namespace

Result<Outcome> pack(const PackOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const isobit::PackOptions parsed, parse_options(options));
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims files;
  ISOBIT_RETURN_IF_ERROR(claim_output(options.output, options.dry_run, files));
  ISOBIT_RETURN_IF_ERROR(claim_checkpoint(options.model, "MODEL", files));
  ISOBIT_ASSIGN_OR_RETURN(Packing packing, Packing::plan(options.model, parsed));
  Outcome out;
  out.json.set("model", options.model).set("dry_run", options.dry_run);
  out.refusal = packing.refusal();
  PackDescription description(options.model, parsed, packing);
  Progress progress("packing", options.quiet);
  const auto report = [&](const PackTensor& tensor, const PackedTensor& packed) {
    description.add(tensor, packed);
    progress.update(description.share_done());
  };
  ThreadPool pool(options.threads);
  if (options.dry_run) {
    ISOBIT_RETURN_IF_ERROR(std::move(packing).rehearse(&pool, report));
  } else {
    ISOBIT_ASSIGN_OR_RETURN(const LowBitFile content, std::move(packing).run(&pool, report));
    ISOBIT_RETURN_IF_ERROR(save_low_bit(options.output, content));
  }
  out.add(description.describe());
  add_saved(options.dry_run ? "" : options.output, out);
  return out;
}

}  // namespace isobit::tool
