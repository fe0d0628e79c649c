// SPDX-License-Identifier: Apache-2.0
#include "report/html/markup.h"

#include <array>
#include <charconv>
#include <cmath>

#include "report/json.h"

namespace isobit {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

/// The colours of series are those of Okabe and Ito, which the colour-blind tell apart.
constexpr std::string_view kLight =
    "--paper:#fff;--card:#f6f8fa;--ink:#1c2733;--soft:#596775;--line:#dde3e9;--grid:#e9edf1;--fill:#0072b2;"
    "--pale:#a9cfe8;--off:#fbe3d6;--clip:#b34700;--c1:#0072b2;--c2:#d55e00;--c3:#009e73;--c4:#a8588a;--c5:#b57c00;"
    "--c6:#4d5a66;color-scheme:light";
constexpr std::string_view kDark =
    "--paper:#12181f;--card:#1a222b;--ink:#e6ebf0;--soft:#9dabb8;--line:#2e3a46;--grid:#25303a;--fill:#56b4e9;"
    "--pale:#2a5572;--off:#43291d;--clip:#f0915a;--c1:#56b4e9;--c2:#f0803c;--c3:#2fc79c;--c4:#dd94c0;--c5:#e6b23c;"
    "--c6:#aeb9c4;color-scheme:dark";

/// Selectors begin with .isobit: in a notebook the rest of the page stays as it is.
constexpr std::string_view kRules = R"(
.isobit{background:var(--paper);color:var(--ink);line-height:1.5;font-size:15px;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans","Liberation Sans",Arial,sans-serif;
font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%;print-color-adjust:exact;
-webkit-print-color-adjust:exact}
.isobit main,.isobit-part{max-width:1120px;margin:0 auto;padding:28px 28px 40px;box-sizing:border-box}
.isobit-part{padding:14px 18px 16px;margin:0;border-radius:8px}
.isobit h1{font-size:26px;line-height:1.25;font-weight:650;margin:0 0 4px;letter-spacing:-.01em;
overflow-wrap:anywhere}
.isobit h2{font-size:19px;line-height:1.3;font-weight:650;margin:44px 0 4px;padding-top:14px;
border-top:1px solid var(--line)}
.isobit h3{font-size:14px;font-weight:650;margin:22px 0 8px}
.isobit p{margin:4px 0 12px;max-width:76ch}
.isobit sup{line-height:0;font-size:.72em}
.isobit .soft,.isobit small{color:var(--soft)}
.isobit small{font-size:12.5px}
.isobit .warn{border-left:3px solid var(--clip);padding:2px 0 2px 12px;overflow-wrap:anywhere}
.isobit .tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:12px;margin:18px 0 8px}
.isobit .tile{background:var(--card);border-radius:8px;padding:12px 14px}
.isobit .tile b{display:block;font-size:23px;font-weight:650;line-height:1.25;white-space:nowrap}
.isobit .tile b i{font-style:normal;font-size:14px;font-weight:500;color:var(--soft)}
.isobit .tile span{display:block;font-size:13px;color:var(--soft)}
.isobit .tile small{display:block;line-height:1.4;margin-top:3px;overflow-wrap:anywhere}
.isobit .wide{overflow-x:auto;margin:8px 0 12px}
.isobit table{border-collapse:collapse;font-size:13.5px;width:100%;background:none;border:0;color:inherit}
.isobit th,.isobit td{padding:4px 10px;text-align:right;border:0;border-bottom:1px solid var(--grid);
white-space:nowrap;background:none}
.isobit thead th{font-weight:500;color:var(--soft);font-size:12.5px;vertical-align:bottom;
border-bottom:1px solid var(--line)}
.isobit th:first-child,.isobit td:first-child,.isobit .left{text-align:left}
.isobit tbody th{font-weight:600;padding-top:14px;color:var(--ink)}
.isobit td.name{font-weight:600}
.isobit tr.chosen td{background:var(--card);font-weight:600}
.isobit td.long{white-space:normal;min-width:190px;max-width:430px;overflow-wrap:anywhere}
.isobit .hot{color:var(--clip);font-weight:600}
.isobit svg{display:block;overflow:visible;max-width:none}
.isobit svg.bar{display:inline-block;width:110px;height:11px;vertical-align:-1px;margin-left:8px}
.isobit svg.key{display:inline-block;width:11px;height:11px;vertical-align:-1px;margin:0 5px 0 14px}
.isobit svg.key:first-child{margin-left:0}
.isobit svg.chart{width:100%;height:auto}
.isobit svg text{font-size:13px;fill:var(--soft);font-family:inherit}
.isobit svg .strong{fill:var(--ink);font-weight:600;paint-order:stroke;stroke:var(--paper);stroke-width:4px}
.isobit .keys{font-size:13px;color:var(--soft);margin:2px 0 6px}
.isobit .pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:8px 32px}
.isobit .cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(236px,100%),1fr));gap:18px 24px}
.isobit .cards figure{display:flex;flex-direction:column;justify-content:space-between}
.isobit .tables{grid-template-columns:repeat(auto-fill,minmax(min(320px,100%),1fr))}
.isobit figure.single{max-width:600px}
.isobit figure{margin:0;min-width:0}
.isobit figcaption{font-size:13px;margin-bottom:4px;line-height:1.4}
.isobit figcaption b{font-weight:650}
.isobit .grid{stroke:var(--grid);fill:none}
.isobit .axis{stroke:var(--soft);fill:none}
.isobit .clip{stroke:var(--clip);fill:none;stroke-dasharray:4 3}
.isobit .off{fill:var(--off)}
.isobit .rail{fill:var(--grid)}
.isobit .fill{fill:var(--fill)}
.isobit .pale{fill:var(--pale)}
.isobit .ring{stroke:var(--ink);fill:none;stroke-width:2}
.isobit .mark{stroke:var(--ink);fill:none;stroke-dasharray:2 3}
.isobit .l1,.isobit .l2,.isobit .l3,.isobit .l4,.isobit .l5,.isobit .l6{fill:none;stroke-width:1.8;
stroke-linejoin:round}
.isobit .l1{stroke:var(--c1)}.isobit .l2{stroke:var(--c2)}.isobit .l3{stroke:var(--c3)}
.isobit .l4{stroke:var(--c4)}.isobit .l5{stroke:var(--c5)}.isobit .l6{stroke:var(--c6)}
.isobit .f1{fill:var(--c1)}.isobit .f2{fill:var(--c2)}.isobit .f3{fill:var(--c3)}
.isobit .f4{fill:var(--c4)}.isobit .f5{fill:var(--c5)}.isobit .f6{fill:var(--c6)}
.isobit dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;font-size:13.5px;margin:10px 0}
.isobit dt{font-weight:600}.isobit dd{margin:0;color:var(--soft);max-width:76ch}
@media (max-width:640px){
.isobit main{padding:18px 16px 28px}.isobit h1{font-size:21px}
.isobit .tiles{grid-template-columns:1fr 1fr;gap:8px}.isobit .tile b{font-size:19px}
.isobit .tile{padding:10px 12px}.isobit dl{display:block}.isobit dd{margin-bottom:8px}
.isobit th,.isobit td{padding:4px 7px}.isobit svg.bar{width:64px}
.isobit table.tensors td:first-child,.isobit table.tensors thead th:first-child{position:sticky;left:0;
background:var(--paper)}
.isobit svg.chart text{font-size:16px}.isobit .tables svg.chart text{font-size:13px}
.isobit .cards{grid-template-columns:1fr 1fr;gap:16px}.isobit .tables{grid-template-columns:1fr}}
@media print{
.isobit{font-size:12.5px}.isobit main{padding:0;max-width:none}.isobit .wide{overflow:visible}
.isobit table{font-size:11px}.isobit th,.isobit td{padding:2px 6px}.isobit svg.bar{width:70px}
.isobit figure,.isobit tr,.isobit .tile{break-inside:avoid}.isobit h2,.isobit h3{break-after:avoid}
.isobit .pair{grid-template-columns:1fr 1fr}.isobit .cards{grid-template-columns:repeat(3,1fr)}
.isobit .tables{grid-template-columns:1fr 1fr}.isobit .tiles{grid-template-columns:repeat(4,1fr);gap:8px}
.isobit .tile b{font-size:18px}.isobit tbody tr:has(th){break-after:avoid}
@page{margin:14mm}}
)";

std::string rule(std::string_view selector, std::string_view body) {
  return std::string(selector).append("{").append(body).append("}");
}

/// Paper is light. A notebook says by an attribute or a class which theme it has, whatever the system prefers.
std::string style(bool is_notebook) {
  const std::string media_dark = "@media screen and (prefers-color-scheme:dark){" + rule(".isobit", kDark) + "}";
  std::string css = "<style>" + rule(".isobit", kLight) + media_dark;
  if (is_notebook) {
    css += rule("[data-jp-theme-light=\"true\"] .isobit,.vscode-light .isobit", kLight) +
           rule("[data-jp-theme-light=\"false\"] .isobit,.vscode-dark .isobit", kDark);
  } else {
    css += rule("html", "background:#fff") + "@media screen and (prefers-color-scheme:dark){" +
           rule("html", "background:#12181f") + "}" + rule("body", "margin:0");
  }
  return css.append(kRules) + "</style>\n";
}

std::string chars_of(double value, std::chars_format form, int precision) {
  std::array<char, 400> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, form, precision).ptr};
}

/// Infinite values, and minus signs in the place of hyphens; no "-0".
template <typename Text>
std::string signed_html(double value, Text text_of) {
  if (std::isnan(value)) return "–";
  std::string text = std::isinf(value) ? "∞" : text_of(std::abs(value));
  const bool is_zero = text.find_first_not_of("0.") == std::string::npos;
  if (const size_t exponent = text.find("e-"); exponent != std::string::npos) text.replace(exponent, 2, "e−");
  return value < 0 && !is_zero ? "−" + text : text;
}

}  // namespace

std::string html_text(std::string_view text, size_t most) {
  // A long text is cut where a character of UTF-8 begins.
  const bool is_long = text.size() > most;
  if (is_long) {
    size_t end = most;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  const std::string utf8 = OrderedJson::parse(json_line(OrderedJson(text))).get<std::string>();
  std::string out;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const std::string_view rest = std::string_view(utf8).substr(i);
    switch (const auto c = static_cast<unsigned char>(utf8[i])) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (rest.starts_with("\xef\xbf\xbe") || rest.starts_with("\xef\xbf\xbf")) {  // no characters of XML
          out += kReplacement;
          i += 2;
        } else if (c < ' ' || c == 0x7f) {
          out += kReplacement;
        } else {
          out += utf8[i];
        }
    }
  }
  return is_long ? out + "…" : out;
}

std::string fixed_html(double value, int decimals) {
  return signed_html(value, [&](double size) { return chars_of(size, std::chars_format::fixed, decimals); });
}

std::string digits_html(double value, int digits) {
  return signed_html(value, [&](double size) { return chars_of(size, std::chars_format::general, digits); });
}

std::string whole_html(int64_t value) {
  const std::string text = std::to_string(value);
  return value < 0 ? "−" + grouped_html(text.substr(1)) : grouped_html(text);
}

std::string grouped_html(std::string digits) {
  for (size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, ",");
  return digits;
}

std::string db_html(double db) { return std::isinf(db) && db > 0 ? "exact" : fixed_html(db, 1); }

std::string bytes_html(int64_t bytes) {
  constexpr std::array<const char*, 3> kUnits = {" kB", " MB", " GB"};
  auto value = static_cast<double>(bytes);
  if (value < 10000) return whole_html(bytes) + " bytes";
  size_t unit = 0;
  for (value /= 1000; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return digits_html(value, 3) + kUnits[unit];
}

std::string coordinate(double value) {
  const double rounded = std::round(value * 100) / 100;
  return chars_of(rounded == 0 ? 0 : rounded, std::chars_format::general, 8);
}

std::string html_document(std::string_view title, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n<title>" +
         html_text(title) + "</title>\n" + style(false) + "</head>\n<body class=\"isobit\">\n<main>\n" + body +
         "</main>\n</body>\n</html>\n";
}

std::string html_division(const std::string& body) {
  return "<div class=\"isobit isobit-part\">\n" + style(true) + body + "</div>\n";
}

}  // namespace isobit
