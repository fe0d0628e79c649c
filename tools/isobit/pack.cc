// SPDX-License-Identifier: Apache-2.0
// isobit pack: float weights to low bits, and low-bit weights of others to the saved form.
#include "isobit/pack.h"

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
Result<Outcome> pack(const PackOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(isobit::PackOptions parsed, parse_form(options.form));
  parsed.include = options.include;
  parsed.exclude = options.exclude;
  parsed.requantize = options.requantize;
  parsed.conv_groups = options.groups;
  ISOBIT_RETURN_IF_ERROR(parse_word_if_given("--checkpoint-format", options.checkpoint_format,
                                             checkpoint_format_from_string, {"gptq", "gptq_v2", "awq"},
                                             parsed.checkpoint_format));
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
