// SPDX-License-Identifier: Apache-2.0
// Float and integer forward side by side on the same data, tensor by tensor, and what wider tensors would give.
#include "isobit/compare.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibrate.h"
#include "device.h"
#include "isobit/files.h"
#include "isobit/gru.h"
#include "isobit/gru_files.h"
#include "isobit/parallel.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

Result<GruAblation> ablate_on(const SequenceFiles& files, const GruWeights& weights, const GruModel& model,
                              const CompareOptions& options, ThreadPool& pool) {
  Progress progress("trying wider tensors", options.quiet);
  ISOBIT_ASSIGN_OR_RETURN(GruValidation validation,
                          GruValidation::create(weights, {.zoneout = options.zoneout, .pool = &pool}));
  std::vector<std::string> given;
  ISOBIT_RETURN_IF_ERROR(files.for_each([&](const Sequences& data) { return validation.add(view_of(data)); }, given));
  return ablate(validation, model,
                {.alone = !options.html.empty(), .progress = [&](double fraction) { progress.update(fraction); }});
}

}  // namespace

Result<Outcome> compare(const CompareOptions& options) {
  if (!(options.part > 0) || !std::isfinite(options.part)) {
    return bad_option(format("--part %g: expected a number of codes above 0", options.part));
  }
  ISOBIT_RETURN_IF_ERROR(check_zoneout(options.zoneout));
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims claims;
  if (!options.html.empty()) {
    ISOBIT_RETURN_IF_ERROR(claims.reads(options.float_model, "FLOAT"));
    ISOBIT_RETURN_IF_ERROR(claims.reads(options.fixed_model, "FIXED"));
    ISOBIT_RETURN_IF_ERROR(check_output(options.html, "--html", OutputKind::kHtml, claims));
  }
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  if (device && options.threads != 0 && !options.ablate) {
    return refuse_on_device(options.device, "--threads " + std::to_string(options.threads), "they are the CPU's");
  }
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader float_file, ArrayReader::open(options.float_model));
  if (float_file.kind() == FileKind::kGruModels) {
    return bad_option(options.float_model + ": is an integer model; give the float model first, then the integer one");
  }
  ISOBIT_ASSIGN_OR_RETURN(GruLoadOptions load, parse_source(options.source));
  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(options.fixed_model, load.prefix));
  if (options.source.layer.empty()) load.prefix = model.parameters().name;
  ISOBIT_ASSIGN_OR_RETURN(const GruWeights weights, load_gru(float_file, load));

  std::unique_ptr<GruCodeSource> source_of_codes;
  if (device) {
    ISOBIT_ASSIGN_OR_RETURN(source_of_codes, device->code_source(model));
  }
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles files,
                          SequenceFiles::open(options.data, options.sequences, sequence_sizes(weights), claims));
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles::Extents extents, files.extents());
  if (extents.steps == 0) {
    return bad_option("--data " + options.data.front() + ": the data has no time step");
  }
  ThreadPool pool(options.threads);
  std::vector<std::string> names;  // of sequences
  std::optional<Progress> progress(std::in_place, "comparing", options.quiet);
  const auto done = [&](int64_t count) {
    progress->update(static_cast<double>(count) / static_cast<double>(extents.sequences));
  };
  const GruCompareOptions how{.part_codes = options.part,
                              .zoneout = options.zoneout,
                              .pool = &pool,
                              .source = source_of_codes.get(),
                              .progress = done,
                              .profile = !options.html.empty()};
  ISOBIT_ASSIGN_OR_RETURN(const GruComparisonReport report,
                          prefixed(options.float_model + ", " + options.fixed_model + ": ",
                                   compare_files(files, weights, model, how, names)));
  progress.reset();

  Outcome out;
  const bool same_source = weights.source_hash == model.parameters().source_hash;
  out.json.set("float_model", options.float_model).set("fixed_model", options.fixed_model);
  out.json.set("same_source", same_source);
  out.json.set("hint", extents.warnings.empty() ? Value() : Value(extents.warnings.front()));
  out.add(describe_reading(weights, options.float_model));
  if (!same_source) {
    out.text += options.fixed_model + " was made from other weights than " + options.float_model + "\n";
  }
  out.warnings.insert(out.warnings.end(), extents.warnings.begin(), extents.warnings.end());
  if (device) {
    out.json.set("device", options.device);
    out.text +=
        "fixed on " + device->text() + ": x and h of every layer; what lies between does not leave the device\n";
  }
  out.add(describe_comparison(report, model.parameters().directions, names, options.part));
  for (const TensorComparison& row : report.tensors) {
    if (row.layer != 0 || row.tensor != kX) continue;
    warn_of_clipping({static_cast<int64_t>(row.clipped), static_cast<int64_t>(row.count)}, model.input_grid(), "--data",
                     out);
  }
  std::optional<GruAblation> ablation;
  if (options.ablate) {
    ISOBIT_ASSIGN_OR_RETURN(ablation, ablate_on(files, weights, model, options, pool));
    const Description description = describe_ablation(*ablation);
    out.json.set("ablation", Value::parsed(description.json));
    out.text += "\n" + description.text;
  }
  if (!options.html.empty()) {
    GruPage page;
    page.title = options.float_model + " and " + options.fixed_model;
    page.model = &model;
    page.comparison = &report;
    page.sequences = names;
    page.part_codes = options.part;
    page.ablation = ablation ? &*ablation : nullptr;
    page.warnings = out.warnings;
    ISOBIT_RETURN_IF_ERROR(write_page(page, options.html, out));
  }
  return out;
}

}  // namespace isobit::tool
