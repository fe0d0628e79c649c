// SPDX-License-Identifier: Apache-2.0
// Pages: well-formed, with the numbers of the JSON, small, and nothing in a name becomes markup.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "isobit/report.h"
#include "report/html/chart.h"
#include "report/html/markup.h"

namespace isobit {
namespace {

using Json = nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::string kNasty = "a<b>&\"'\x01\xff</td><script>";

bool holds(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// The first fault of a document whose elements must be closed in their order, as in XML; empty: none.
std::string fault_of(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "a tag has no end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (holds(tag, "<")) return "'<' in " + tag;
    if (tag.starts_with("!DOCTYPE")) continue;
    if (tag.starts_with("/")) {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected </" + tag.substr(1) + ">";
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

std::vector<float> uniforms(Random& random, int64_t count, float limit) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = limit * static_cast<float>(random.between(-1000000, 1000000)) / 1000000.0f;
  return values;
}

struct Case {
  GruWeights weights;
  std::optional<GruModel> model;
  GruComparisonReport report;
  std::vector<std::string> names;

  [[nodiscard]] GruPage page() const {
    GruPage page;
    page.title = "float and fixed";
    page.model = &*model;
    page.comparison = &report;
    page.sequences = names;
    return page;
  }
};

Result<Case> make_case(int64_t layers, int32_t directions, const std::string& bits, bool profile = true) {
  constexpr int64_t kInput = 3, kHidden = 4, kSteps = 40, kBatch = 9;
  Random random(1);
  Case out;
  out.weights.directions = directions;
  out.weights.name = "a<b>&\"'";
  for (int64_t i = 0; i < layers * directions; ++i) {
    const int64_t input = i < directions ? kInput : kHidden * directions;
    out.weights.layers.push_back({input, kHidden, uniforms(random, 3 * kHidden * input, 0.8f),
                                  uniforms(random, 3 * kHidden * kHidden, 0.8f), uniforms(random, 3 * kHidden, 0.3f),
                                  uniforms(random, 3 * kHidden, 0.3f)});
  }
  const std::vector<float> x = uniforms(random, kSteps * kBatch * kInput, 1);
  ISOBIT_ASSIGN_OR_RETURN(const GruQuantization wanted, GruSettings{.bits = bits}.quantization());
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(out.weights, wanted));
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(x, kSteps, kBatch));
  ISOBIT_ASSIGN_OR_RETURN(out.model, calibrator.finish(wanted));
  GruCompareOptions options;
  options.profile = profile;
  ISOBIT_ASSIGN_OR_RETURN(GruComparison comparison, GruComparison::create(out.weights, *out.model, options));
  GruSequences data;
  data.steps = kSteps;
  data.batch = kBatch;
  data.x = x;
  ISOBIT_RETURN_IF_ERROR(comparison.add(data));
  ISOBIT_ASSIGN_OR_RETURN(out.report, comparison.finish());
  for (int64_t n = 0; n < kBatch; ++n) out.names.push_back("/data/" + kNasty + std::to_string(n));
  return out;
}

TEST(Html, TextIsEscaped) {
  EXPECT_EQ(html_text(kNasty), "a&lt;b&gt;&amp;&quot;&#39;\xef\xbf\xbd\xef\xbf\xbd&lt;/td&gt;&lt;script&gt;");
  EXPECT_EQ(html_text("Σ \xef\xbf\xbe\xef\xbf\xbf"), "Σ \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(html_text("aΣΣ", 4), "aΣ…") << "cut where a character begins";
  EXPECT_EQ(html_text("<<<", 2), "&lt;&lt;…");
  EXPECT_EQ(html_text(""), "");
}

TEST(Html, Numbers) {
  EXPECT_EQ(fixed_html(-0.25, 1), "−0.2");
  EXPECT_EQ(fixed_html(-0.001, 2), "0.00");
  EXPECT_EQ(fixed_html(kInfinity, 2), "∞");
  EXPECT_EQ(digits_html(-4.125e-9, 2), "−4.1e−09");
  EXPECT_EQ(digits_html(std::nan(""), 2), "–");
  EXPECT_EQ(whole_html(999), "999");
  EXPECT_EQ(whole_html(-1234567), "−1,234,567");
  EXPECT_EQ(grouped_html("12345678901234567890123"), "12,345,678,901,234,567,890,123");
  EXPECT_EQ(db_html(kInfinity), "exact");
  EXPECT_EQ(db_html(-kInfinity), "−∞");
  EXPECT_EQ(bytes_html(9999), "9,999 bytes");
  EXPECT_EQ(bytes_html(12345), "12.3 kB");
  EXPECT_EQ(bytes_html(999600), "1 MB");
  EXPECT_EQ(coordinate(-0.001), "0");
  EXPECT_EQ(coordinate(1040.256), "1040.26");
  EXPECT_EQ(tick_html(0.30000000000000004, 0.1), "0.3");
  EXPECT_EQ(tick_html(2500, 500), "2,500");
  EXPECT_DOUBLE_EQ(axis_end(0.53), 0.6);
  EXPECT_EQ(round_up(0.021), 0.05);
}

TEST(Page, HasTheNumbersOfTheJson) {
  const Result<Case> made = make_case(2, 2, "8,h=6");
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Result<std::string> page = html_page(made->page());
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_EQ(fault_of(*page), "");
  const Json json = Json::parse(describe_comparison(made->report, 2, made->names, 1).json);
  EXPECT_TRUE(holds(*page, "<b>" + fixed_html(json["output_sqnr_db"], 1) + " <i>dB</i>"));
  EXPECT_TRUE(holds(*page, digits_html(json["output_rms_error"], 3)));
  size_t at = 0;
  for (const Json& tensor : json["tensors"]) {  // in their order
    at = page->find("<td class=\"name\">" + tensor["tensor"].get<std::string>() + "</td>", at);
    ASSERT_NE(at, std::string::npos) << tensor;
    const std::string row = page->substr(at, page->find("</tr>", at) - at);
    const std::string sqnr = tensor["sqnr_db"].is_null() ? "exact" : fixed_html(tensor["sqnr_db"], 1);
    EXPECT_TRUE(holds(row, "<td>" + sqnr + "<svg")) << row;
    if (!tensor["first_part"].is_null()) {
      EXPECT_TRUE(holds(row, ">" + whole_html(tensor["first_part"]["step"]) + "</td>")) << row;
    }
  }
  const std::string worst = json["worst_sequence"]["sequence"];
  EXPECT_TRUE(holds(*page, "<b>Worst sequence</b> <small>" + html_text(worst.substr(worst.rfind('/') + 1))));
  for (const std::string part : {"All sequences", "Sequence by sequence", "Least SQNR", "Values on their grids",
                                 "Activation tables", "l1_reverse.n", "Head room of the overflow proof"}) {
    EXPECT_TRUE(holds(*page, part)) << part;
  }
  // 12 histograms (biases have none) and three tables a layer and direction.
  const auto count = [&](const std::string& part) {
    size_t found = 0;
    for (size_t from = page->find(part); from != std::string::npos; from = page->find(part, from + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("aria-label=\"histogram of "), 4U * 12);
  EXPECT_EQ(count("aria-label=\"errors of the table "), 4U * 3);
}

TEST(Page, NamesAreNoMarkup) {
  const Result<Case> made = make_case(1, 1, "8");
  ASSERT_TRUE(made.ok()) << made.status().message();
  GruPage content = made->page();
  content.title = kNasty;
  content.warnings = {kNasty};
  for (const auto& page : {html_page(content), html_part(content)}) {
    ASSERT_TRUE(page.ok());
    EXPECT_EQ(fault_of(*page), "");
    EXPECT_FALSE(holds(*page, "<script")) << "neither a name nor we";
    EXPECT_FALSE(holds(*page, "\x01") || holds(*page, "\xff"));
    EXPECT_FALSE(holds(*page, "http") || holds(*page, "url(") || holds(*page, "@import")) << "opens offline";
    EXPECT_EQ(page->find("a&lt;b&gt;&amp;&quot;&#39;") == std::string::npos, false);
  }
}

TEST(Page, IsReproducibleAndSmall) {
  const Result<Case> made = make_case(20, 2, "8"), again = make_case(20, 2, "8");
  ASSERT_TRUE(made.ok() && again.ok()) << made.status().message();
  const Result<std::string> page = html_page(made->page());
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_EQ(*page, *html_page(again->page()));
  EXPECT_LT(page->size(), 1000000U);
  EXPECT_TRUE(holds(*page, "The first 16 are shown here; the other 24 are in"));
  EXPECT_EQ(fault_of(*page), "");
  GruPage many = made->page();
  many.warnings.assign(1000, std::string(10000, '<'));
  many.title.assign(1000000, '&');
  const Result<std::string> long_page = html_page(many);
  ASSERT_TRUE(long_page.ok());
  EXPECT_LT(long_page->size(), 1000000U);
}

TEST(Page, WithoutProfileThereAreNoPictures) {
  const Result<Case> made = make_case(1, 1, "8", /*profile=*/false);
  ASSERT_TRUE(made.ok());
  const Result<std::string> page = html_page(made->page());
  ASSERT_TRUE(page.ok());
  for (const std::string part : {"Error over time", "Values on their grids", "Errors against the correctly"}) {
    EXPECT_FALSE(holds(*page, part)) << part;
  }
  EXPECT_TRUE(holds(*page, "Tensors, in the order"));
}

TEST(Page, AblationAndSearch) {
  const Result<Case> made = make_case(1, 1, "8");
  ASSERT_TRUE(made.ok());
  GruAblation ablation;
  GruAblationRow wide, refused;
  wide.set = "h=16";
  wide.sqnr.output_db = 40.25;
  wide.gain_db = 5.5;
  wide.weight_bytes = 12345;
  refused.set = "W=16";
  refused.refused = "no scale";
  ablation.rows = {wide, refused};
  ablation.advice = 0;
  ablation.sentence = "Widen <h>.";
  ablation.alone = {{0, kW, 30, {}}, {0, kH, 33.0103, {}}, {0, kR, 0, "why"}};
  GruTuneResult search;
  search.front = {
      {.settings = {.bits = "16"}, .quality = 40.5, .sqnr = {}, .bytes = 40000, .speed = SpeedClass::kWideStates},
      {.settings = {.bits = "4"}, .quality = 20.5, .sqnr = {}, .bytes = 10000}};
  search.chosen = search.front[0];
  search.chosen.settings.reason = "why";
  search.reached = true;
  search.evaluations = 77;
  GruPage content = made->page();
  content.ablation = &ablation;
  content.search = &search;
  const Result<std::string> page = html_page(content);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(fault_of(*page), "");
  EXPECT_TRUE(holds(*page, "<tr class=\"chosen\"><td class=\"left long\">h=16</td><td>40.2"));
  EXPECT_TRUE(holds(*page, "<td>+5.5</td><td>12,345</td>"));
  EXPECT_TRUE(holds(*page, "Widen &lt;h&gt;."));
  EXPECT_TRUE(holds(*page, ">blame, dB</th>"));
  // W has twice the noise of h: two thirds and one third of the bar.
  EXPECT_TRUE(holds(*page, "<td>30.0<svg class=\"bar\"")) << "blame of W";
  EXPECT_TRUE(holds(*page, "width=\"66.67\"") && holds(*page, "width=\"33.33\""));
  EXPECT_TRUE(holds(*page, "<tr class=\"chosen\"><td>40.50</td><td>40,000</td>"));
  EXPECT_TRUE(holds(*page, "77 models tried"));
  EXPECT_TRUE(holds(*page, "Chosen: <code>" + html_text(search.chosen.settings.command_options(), 2000) + "</code>"));
  search.judged = true;
  search.reached = false;
  GruPage only;
  only.title = "m.npz";
  only.search = &search;
  const Result<std::string> judged = html_page(only);
  ASSERT_TRUE(judged.ok());
  EXPECT_TRUE(holds(*judged, "<h1>m.npz</h1>") && holds(*judged, ">metric</th>") &&
              holds(*judged, "Best that was found"));
  search.front.clear();
  search.chosen.quality = kInfinity;
  EXPECT_EQ(fault_of(*html_page(only)), "");
}

TEST(Page, Refusals) {
  const Result<Case> made = make_case(1, 1, "8"), other = make_case(2, 1, "8");
  ASSERT_TRUE(made.ok() && other.ok());
  GruPage page = made->page();
  page.sequences.pop_back();
  EXPECT_EQ(html_page(page).status().message(), "page.sequences has 8 names, must have one for each of 9 sequences");
  page = made->page();
  page.model = nullptr;
  EXPECT_EQ(html_part(page).status().code(), StatusCode::kInvalidArgument);
  page = other->page();
  page.model = &*made->model;
  EXPECT_TRUE(holds(html_page(page).status().message(), "page.comparison has layer 1, page.model has 1"));
}

TEST(Page, ModelAlone) {
  const Result<Case> made = make_case(2, 1, "8,l1.W=4");
  ASSERT_TRUE(made.ok());
  GruPage page;
  page.model = &*made->model;
  const Result<std::string> part = html_part(page);
  ASSERT_TRUE(part.ok());
  EXPECT_TRUE(part->starts_with("<div class=\"isobit isobit-part\">"));
  EXPECT_EQ(fault_of(*part), "");
  EXPECT_TRUE(holds(*part, "<td class=\"name\">l1</td><td>8</td><td>8</td><td>4</td>")) << "x h W";
  EXPECT_TRUE(holds(*part, whole_html(made->model->sizes()->total_bytes()) + " bytes"));
}

}  // namespace
}  // namespace isobit
