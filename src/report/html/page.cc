// SPDX-License-Identifier: Apache-2.0
// Comparisons, searches and models as a page in HTML: its text and tables. page_charts.cc has the pictures.
#include "report/html/page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "core/float_mode.h"
#include "report/html/chart.h"
#include "report/html/markup.h"
#include "report/model.h"

namespace isobit {
namespace {

constexpr double kFullBarDb = 60.0;
constexpr size_t kMostWarnings = 20;
constexpr size_t kMostSets = 12;   // of an ablation, before the rest is folded away
constexpr size_t kMostRows = 200;  // of any other list
constexpr double kMuchClipped = 0.01;

bool is_weight(int32_t tensor) { return tensor >= kW && tensor <= kBr; }

std::string paragraph(const std::string& text, const char* text_class = nullptr) {
  return std::string("<p") + (text_class == nullptr ? "" : std::string(" class=\"") + text_class + "\"") + ">" + text +
         "</p>\n";
}

std::string cell(const std::string& content, const char* cell_class = nullptr) {
  return std::string("<td") + (cell_class == nullptr ? "" : std::string(" class=\"") + cell_class + "\"") + ">" +
         content + "</td>";
}

std::string header_cell(const std::string& content, const char* cell_class = nullptr) {
  return std::string("<th scope=\"col\"") +
         (cell_class == nullptr ? "" : std::string(" class=\"") + cell_class + "\"") + ">" + content + "</th>";
}

std::string tile(const std::string& label, const std::string& figure, const std::string& detail) {
  return "<div class=\"tile\"><span>" + label + "</span><b>" + figure + "</b><small>" + detail + "</small></div>\n";
}

/// A figure with its unit in small letters.
std::string with_unit(const std::string& figure, const std::string& unit) { return figure + " <i>" + unit + "</i>"; }

/// "1.29 MB" to the same.
std::string bytes_figure(int64_t bytes) {
  const std::string text = bytes_html(bytes);
  const size_t space = text.find(' ');
  return with_unit(text.substr(0, space), text.substr(space + 1));
}

// ---------------------------------------------------------------------------------------------------------------
// Figures

int64_t products_of_step(const GruModelParameters& p) {
  int64_t sum = 0;
  for (const GruLayerParameters& layer : p.layers) {
    sum += 3 * layer.hidden_size * (layer.input_size + layer.hidden_size);
  }
  return sum;
}

std::string head_room_tile(const GruModel& model) {
  const OverflowBound* nearest = nullptr;
  int64_t layer_of_it = 0;
  size_t count = 0;
  for (size_t l = 0; l < model.parameters().layers.size(); ++l) {
    const auto layer = static_cast<int64_t>(l);
    for (const OverflowBound& row : model.overflow_proof(layer)) {
      ++count;
      if (nearest != nullptr && spare_bits(row) >= spare_bits(*nearest)) continue;
      nearest = &row;
      layer_of_it = layer;
    }
  }
  if (nearest == nullptr) return "";
  return tile("Head room of the overflow proof", with_unit(fixed_html(spare_bits(*nearest), 1), "bits"),
              "least of " + whole_html(static_cast<int64_t>(count)) + " intermediates: " +
                  layer_label(layer_of_it, model.parameters().directions) + ": " + html_text(nearest->intermediate) +
                  ", at most " + grouped_html(nearest->bound) + " in " + std::to_string(nearest->bits) + " bits");
}

Result<std::string> model_tiles(const GruModel& model) {
  ISOBIT_ASSIGN_OR_RETURN(const GruSizes sizes, model.sizes());
  const GruModelParameters& p = model.parameters();
  const int64_t products = products_of_step(p);
  int64_t weights = 0, state_bytes = 0;
  for (const GruLayerParameters& layer : p.layers) {
    weights += 3 * layer.hidden_size * (layer.input_size + layer.hidden_size + 2);
    state_bytes += layer.hidden_size * static_cast<int64_t>(size_in_bytes(layer.grids[kH].dtype()));
  }
  const double share = static_cast<double>(sizes.weights_bytes) / (4 * static_cast<double>(weights));
  return tile(
             "Weights", bytes_figure(sizes.weights_bytes),
             fixed_html(100 * share, 0) + " % of float32; the file has " + whole_html(sizes.total_bytes()) + " bytes") +
         tile("Activation tables", bytes_figure(sizes.tables_bytes),
              whole_html(static_cast<int64_t>(3 * p.layers.size())) + " tables, one a gate") +
         tile("State of a sequence", bytes_figure(state_bytes), "h of every layer and direction") +
         tile("Multiply-adds a step",
              products < 100000 ? whole_html(products)
                                : with_unit(digits_html(static_cast<double>(products) / 1e6, 3), "million"),
              whole_html(products) + " products of two codes") +
         head_room_tile(model);
}

std::string quality_tiles(const GruPage& page) {
  const GruComparisonReport& report = *page.comparison;
  const int32_t directions = page.model->parameters().directions;
  const bool is_exact = std::isinf(report.output_sqnr_db) && report.output_sqnr_db > 0;
  std::string layers;
  for (const TensorComparison& row : report.tensors) {
    if (row.tensor != kH) continue;
    layers += (layers.empty() ? "h of " : ", ") + layer_label(row.layer, directions) + " " + db_html(row.sqnr_db);
  }
  std::string out = tile("SQNR of the output",
                         is_exact ? std::string("exact") : with_unit(db_html(report.output_sqnr_db), "dB"), layers);
  const TensorComparison* largest = nullptr;
  for (const TensorComparison& row : report.tensors) {
    const bool is_output = row.tensor == kH && row.layer / directions == (page.model->layer_count() - 1);
    if (is_output && (largest == nullptr || row.largest_error > largest->largest_error)) largest = &row;
  }
  if (largest == nullptr) return out;
  const ComparePlace& at = largest->largest_error_at;
  out += tile("RMS error of the output", digits_html(report.output_rms_error, 3),
              "at most " + digits_html(largest->largest_error, 3) +
                  (at.step < 0 ? "" : ", at step " + whole_html(at.step) + " of " + sequence_html(page, at.sequence)));
  return out + tile("Compared on", with_unit(whole_html(report.steps), "steps"),
                    "of " + whole_html(report.sequences) + (report.sequences == 1 ? " sequence" : " sequences"));
}

Result<std::string> summary(const GruPage& page) {
  std::string tiles;
  if (page.comparison != nullptr) tiles += quality_tiles(page);
  if (page.search != nullptr) {
    const GruTunePoint& chosen = page.search->chosen;
    tiles += tile(page.search->reached ? "Chosen by the search" : "Best that was found",
                  page.search->judged ? digits_html(chosen.quality, 6) : with_unit(fixed_html(chosen.quality, 2), "dB"),
                  whole_html(chosen.bytes) + " bytes; " + whole_html(page.search->evaluations) + " models tried");
  }
  if (page.model != nullptr) {
    ISOBIT_ASSIGN_OR_RETURN(const std::string model, model_tiles(*page.model));
    tiles += model;
  }
  return tiles.empty() ? tiles : "<div class=\"tiles\">\n" + tiles + "</div>\n";
}

std::string heading(const GruPage& page) {
  std::string name = html_text(page.title);
  std::string out;
  if (page.model != nullptr) {
    const GruModelParameters& p = page.model->parameters();
    name = html_text(
        gru_text(p.name, page.model->layer_count(), p.directions, page.model->input_size(), page.model->output_size()));
    if (const size_t arrow = name.rfind("-&gt;"); arrow != std::string::npos) name.replace(arrow, 5, "→");
    if (!page.title.empty()) out += paragraph(html_text(page.title, 2000), "soft");
    out += paragraph("Widths: <b>" + html_text(bits_text(p), 2000) + "</b>");
  }
  out = "<h1>" + (name.empty() ? "isobit" : name) + "</h1>\n" + out;
  for (size_t i = 0; i < std::min(page.warnings.size(), kMostWarnings); ++i) {
    out += paragraph(html_text(page.warnings[i], 2000), "warn");
  }
  if (page.warnings.size() > kMostWarnings) {
    out += paragraph(whole_html(static_cast<int64_t>(page.warnings.size() - kMostWarnings)) + " more warnings", "warn");
  }
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// Tensors

const std::vector<Grid>* row_grids(const GruLayerParameters& layer, int32_t tensor) {
  switch (tensor) {
    case kW: return &layer.W_grid;
    case kR: return &layer.R_grid;
    case kBw: return &layer.bw_grid;
    case kBr: return &layer.br_grid;
    default: return nullptr;
  }
}

std::string scale_html(const Grid& grid) {
  if (grid.kind == ScaleKind::kPow2) return "2<sup>" + fixed_html(-grid.shift, 0) + "</sup>";
  return digits_html(static_cast<double>(grid.real_scale), 4);
}

}  // namespace

std::string step_html(const GruLayerParameters& layer, int32_t tensor) {
  const std::vector<Grid>* rows = row_grids(layer, tensor);
  if (rows == nullptr || rows->empty()) return scale_html(layer.grids[static_cast<size_t>(tensor)]);
  const auto [low, high] = std::minmax_element(rows->begin(), rows->end(),
                                               [](const Grid& a, const Grid& b) { return a.scale() < b.scale(); });
  const std::string least = scale_html(*low), most = scale_html(*high);
  return least == most ? least : least + " to " + most;
}

std::string sequence_html(const GruPage& page, int64_t sequence) {
  const std::string_view name = page.sequences[static_cast<size_t>(sequence)];
  const std::string_view first = page.sequences.front();
  size_t same = std::min(first.size(), first.rfind('/') + 1);
  for (const std::string& other : page.sequences) {
    const auto end =
        std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(same), other.begin(), other.end());
    same = static_cast<size_t>(end.first - first.begin());
  }
  same = same == 0 ? 0 : first.substr(0, same).rfind('/') + 1;  // 0 where there is none
  return html_text(name.substr(same), 80);
}

std::string left_out_html(const GruPage& page) {
  const int64_t rest = static_cast<int64_t>(page.model->parameters().layers.size()) - kMostLayers;
  if (rest <= 0) return "";
  return paragraph("The first " + std::to_string(kMostLayers) + " are shown here; the other " + whole_html(rest) +
                       " are in the text and the JSON of this comparison.",
                   "soft");
}

namespace {

/// What a tensor alone does to the output, by layer and tensor.
class Blame {
 public:
  explicit Blame(const GruAblation* ablation) {
    if (ablation == nullptr) return;
    for (const GruTensorAlone& one : ablation->alone) {
      rows_[{one.layer, one.tensor}] = &one;
      if (one.refused.empty()) noise_ += noise_of(one);
    }
  }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  /// Both directions have one row: the first shows it.
  [[nodiscard]] std::string cell_of(const TensorComparison& row, int32_t directions) const {
    const auto found = rows_.find({row.layer / directions, row.tensor});
    if (row.layer % directions != 0 || found == rows_.end()) return cell("");
    const GruTensorAlone& one = *found->second;
    if (!one.refused.empty()) return cell("refused");
    return cell(db_html(one.sqnr_db) + bar_html(noise_ > 0 ? noise_of(one) / noise_ : 0, 0, "f2"));
  }

 private:
  static double noise_of(const GruTensorAlone& one) { return std::pow(10.0, -one.sqnr_db / 10); }
  std::map<std::pair<int64_t, int32_t>, const GruTensorAlone*> rows_;
  double noise_ = 0;
};

/// The sequence is shown when the pointer rests on the step.
std::string parts_cell(const GruPage& page, const TensorComparison& row) {
  if (is_weight(row.tensor)) return cell("");
  if (row.first_part.step < 0) return cell("never");
  return "<td title=\"" + sequence_html(page, row.first_part.sequence) + "\">" + whole_html(row.first_part.step) +
         "</td>";
}

std::string channel_html(const TensorComparison& row) {
  if (row.own_worst.channel < 0) return "";
  return db_html(row.own_worst.sqnr_db) + " <small>" + (is_weight(row.tensor) ? "row " : "") +
         std::to_string(row.own_worst.channel) + "</small>";
}

std::string tensor_row(const GruPage& page, const TensorComparison& row, const Blame& blame) {
  const GruModelParameters& p = page.model->parameters();
  const GruLayerParameters& layer = p.layers[static_cast<size_t>(row.layer)];
  const Grid& grid = layer.grids[static_cast<size_t>(row.tensor)];
  const double clipped = static_cast<double>(row.clipped) / static_cast<double>(std::max<uint64_t>(1, row.count));
  const std::string clipped_text = row.clipped == 0   ? "0"
                                   : clipped < 0.5e-5 ? "&lt; 0.001"
                                                      : fixed_html(100 * clipped, 3);
  return "<tr>" + cell(std::string(kGruTensorNames[row.tensor]), "name") +
         cell(std::to_string(grid.bits) + " <small>" + (grid.is_signed ? "signed" : "unsigned") + "</small>") +
         cell(step_html(layer, row.tensor)) + cell(clipped_text, clipped > kMuchClipped ? "hot" : nullptr) +
         cell(db_html(row.sqnr_db) + bar_html(row.sqnr_db / kFullBarDb, row.own_sqnr_db / kFullBarDb)) +
         cell(db_html(row.own_sqnr_db)) + cell(channel_html(row)) +
         (blame.empty() ? "" : blame.cell_of(row, p.directions)) + parts_cell(page, row) + "</tr>\n";
}

std::string tensors(const GruPage& page) {
  const Blame blame(page.ablation);
  const GruModelParameters& p = page.model->parameters();
  std::string rows;
  int64_t layer = -1;
  for (const TensorComparison& row : page.comparison->tensors) {
    if (row.layer >= kMostLayers) break;
    if (row.layer != layer) {
      layer = row.layer;
      const GruLayerParameters& sizes = p.layers[static_cast<size_t>(layer)];
      rows += "<tr><th scope=\"rowgroup\" colspan=\"" + std::to_string(blame.empty() ? 8 : 9) + "\">" +
              layer_label(layer, p.directions) + " <small>" + whole_html(sizes.input_size) + " → " +
              whole_html(sizes.hidden_size) + "</small></th></tr>\n";
    }
    rows += tensor_row(page, row, blame);
  }
  return "<h2>Tensors, in the order of the data’s flow</h2>\n" +
         paragraph(
             "SQNR is that of the integer model’s value, with the errors of everything before; <i>own</i> is that "
             "of the float value on the tensor’s own grid." +
                 std::string(blame.empty() ? ""
                                           : " <i>Blame</i> is the SQNR of the output if only this tensor has its "
                                             "width and all others 16 bits."),
             "soft") +
         "<div class=\"keys\">" + key_html(1, "fill") + "SQNR" + key_html(1, "pale") + "own, both full at " +
         fixed_html(kFullBarDb, 0) + " dB" +
         (blame.empty() ? "" : key_html(1, "f2") + "share of the noise of all tensors") + "</div>\n" +
         "<div class=\"wide\"><table class=\"tensors\"><thead><tr>" + header_cell("tensor") + header_cell("bits") +
         header_cell("step") + header_cell("clipped, %") + header_cell("SQNR, dB") + header_cell("own, dB") +
         header_cell("worst channel, dB") + (blame.empty() ? "" : header_cell("blame, dB")) +
         header_cell("parts at step") + "</tr></thead><tbody>\n" + rows + "</tbody></table></div>\n" +
         left_out_html(page);
}

/// Bits of each tensor: of a model without a comparison.
std::string widths(const GruModel& model) {
  const GruModelParameters& p = model.parameters();
  std::string head, rows;
  for (const std::string_view name : kGruTensorNames) head += header_cell(std::string(name));
  for (size_t l = 0; l < std::min(p.layers.size(), kMostRows); ++l) {
    rows += "<tr>" + cell(layer_label(static_cast<int64_t>(l), p.directions), "name");
    for (const Grid& grid : p.layers[l].grids) rows += cell(std::to_string(grid.bits));
    rows += "</tr>\n";
  }
  return "<h3>Bits of each tensor</h3>\n<div class=\"wide\"><table class=\"tensors\"><thead><tr>" +
         header_cell("layer") + head + "</tr></thead><tbody>\n" + rows + "</tbody></table></div>\n";
}

// ---------------------------------------------------------------------------------------------------------------
// Ablation and search

std::string set_rows(const GruAblation& ablation, size_t first, size_t end) {
  std::string rows;
  for (size_t i = first; i < end; ++i) {
    const GruAblationRow& row = ablation.rows[i];
    rows += static_cast<int64_t>(i) == ablation.advice ? "<tr class=\"chosen\">" : "<tr>";
    rows += cell(html_text(row.set), "left long");
    if (row.refused.empty()) {
      rows += cell(db_html(row.sqnr.output_db) + bar_html(row.sqnr.output_db / kFullBarDb)) +
              cell((row.gain_db > 0 ? "+" : "") + fixed_html(row.gain_db, 1)) + cell(whole_html(row.weight_bytes));
    } else {
      rows += cell("refused") + cell("") + cell("");
    }
    rows += "</tr>\n";
  }
  return "<div class=\"wide\"><table><thead><tr>" + header_cell("at 16 bits") + header_cell("output, dB") +
         header_cell("gain, dB") + header_cell("weights grow by, bytes") + "</tr></thead><tbody>\n" + rows +
         "</tbody></table></div>\n";
}

std::string ablation_section(const GruAblation& ablation) {
  const size_t all = std::min(ablation.rows.size(), kMostRows), shown = std::min(all, kMostSets);
  std::string out = "<h2>What wider tensors give</h2>\n" + paragraph(html_text(ablation.sentence, 4000)) +
                    set_rows(ablation, 0, shown);
  if (all > shown) {
    out += "<details><summary>" + std::to_string(all - shown) + " more sets</summary>\n" +
           set_rows(ablation, shown, all) + "</details>\n";
  }
  return out;
}

std::string front_table(const GruTuneResult& result) {
  GruSettings chosen = result.chosen.settings;
  chosen.reason.clear();
  std::string rows;
  for (size_t i = 0; i < std::min(result.front.size(), kMostRows); ++i) {
    const GruTunePoint& point = result.front[i];
    const bool is_chosen = point.settings.command_options() == chosen.command_options();
    rows += (is_chosen ? "<tr class=\"chosen\">" : "<tr>") +
            cell(result.judged ? digits_html(point.quality, 6) : fixed_html(point.quality, 2)) +
            cell(whole_html(point.bytes)) +
            cell(std::to_string(static_cast<int>(point.speed)) + " " + html_text(to_string(point.speed)), "left") +
            cell(html_text(point.settings.bits), "left long") + cell(html_text(point.settings.method), "left") +
            cell(html_text(point.settings.table), "left") + cell(html_text(to_string(point.settings.scale)), "left") +
            "</tr>\n";
  }
  return "<div class=\"wide\"><table><thead><tr>" + header_cell(result.judged ? "metric" : "quality, dB") +
         header_cell("bytes") + header_cell("speed class", "left") + header_cell("bits", "left") +
         header_cell("method", "left") + header_cell("table", "left") + header_cell("scale", "left") +
         "</tr></thead><tbody>\n" + rows + "</tbody></table></div>\n";
}

std::string search_section(const GruTuneResult& result, bool with_table) {
  std::string out = "<h2>What each size can reach</h2>\n" +
                    paragraph(
                        "The models that no other one beats in quality, bytes, speed class and kind of scale at "
                        "once." +
                            std::string(result.interrupted ? " The search was interrupted." : ""),
                        "soft") +
                    front_chart(result);
  if (with_table) {
    out += front_table(result) + paragraph((result.reached ? "Chosen: <code>" : "Best: <code>") +
                                           html_text(result.chosen.settings.command_options(), 2000) + "</code>");
  }
  return out;
}

std::string glossary(const GruPage& page) {
  std::string rows =
      "<dt>SQNR</dt><dd>10 log₁₀ (Σ a² / Σ (a − b)²) in dB: a is the float value, b what the integer "
      "model’s code stands for. 6 dB more are half the error.</dd>\n";
  if (page.comparison != nullptr) {
    rows +=
        "<dt>clipped</dt><dd>Values more than half a step beyond what the grid is meant to cover.</dd>\n"
        "<dt>parts at step</dt><dd>The first step at which float and integer differ by more than " +
        digits_html(page.part_codes, 4) + (page.part_codes == 1 ? " step" : " steps") + " of the tensor’s grid.</dd>\n";
  }
  if (page.model != nullptr) {
    rows +=
        "<dt>head room</dt><dd>Bits of an integer that the largest value which an intermediate can ever take "
        "leaves unused, whatever the input. No model without such a proof exists.</dd>\n";
  }
  return "<h2>Terms</h2>\n<dl>\n" + rows + "</dl>\n";
}

Status check_page(const GruPage& page) {
  if (page.comparison == nullptr) return {};
  if (page.model == nullptr) {
    return {StatusCode::kInvalidArgument, "page.comparison is given without page.model, the model that was compared"};
  }
  const auto names = static_cast<int64_t>(page.sequences.size());
  if (names < page.comparison->sequences) {
    return {StatusCode::kInvalidArgument, "page.sequences has " + std::to_string(names) +
                                              " names, must have one for each of " +
                                              std::to_string(page.comparison->sequences) + " sequences"};
  }
  const auto layers = static_cast<int64_t>(page.model->parameters().layers.size());
  for (const TensorComparison& row : page.comparison->tensors) {
    if (row.layer < layers) continue;
    return {StatusCode::kInvalidArgument, "page.comparison has layer " + std::to_string(row.layer) +
                                              ", page.model has " + std::to_string(layers) +
                                              "; give the model that was compared"};
  }
  return {};
}

/// What a page and a part of one have in common.
Result<std::string> beginning(const GruPage& page) {
  ISOBIT_RETURN_IF_ERROR(check_page(page));
  std::string body = heading(page);
  ISOBIT_ASSIGN_OR_RETURN(const std::string figures, summary(page));
  body += figures;
  if (page.comparison != nullptr) {
    body += tensors(page);
  } else if (page.model != nullptr) {
    body += widths(*page.model);
  }
  return body;
}

}  // namespace

Result<std::string> html_page(const GruPage& page) {
  const DefaultFloatMode mode;
  ISOBIT_ASSIGN_OR_RETURN(std::string body, beginning(page));
  if (page.ablation != nullptr) body += ablation_section(*page.ablation);
  if (page.comparison != nullptr) {
    body += over_time(page) + histograms(page);
    ISOBIT_ASSIGN_OR_RETURN(const std::string tables, table_errors_section(page));
    body += tables;
  }
  if (page.search != nullptr) body += search_section(*page.search, true);
  body += glossary(page);
  return html_document(page.title.empty() ? "isobit" : page.title, body);
}

Result<std::string> html_part(const GruPage& page) {
  const DefaultFloatMode mode;
  ISOBIT_ASSIGN_OR_RETURN(std::string body, beginning(page));
  if (page.search != nullptr) body += search_section(*page.search, false);
  return html_division(body);
}

}  // namespace isobit
