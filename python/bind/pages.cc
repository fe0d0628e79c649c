// SPDX-License-Identifier: Apache-2.0
// Pages in HTML.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "errors.h"
#include "gru.h"
#include "isobit/arrays.h"
#include "isobit/report.h"
#include "path.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;

void bind_pages(nb::module_& m) {
  m.def(
      "page",
      [](const Comparison* comparison, const GruTuneResult* search, const std::string& title, bool whole) {
        GruPage page;
        page.title = title;
        page.search = search;
        if (search != nullptr && search->model) page.model = &*search->model;
        if (comparison != nullptr) {
          if (!comparison->report) throw StatusError({StatusCode::kFailedPrecondition, "finish() was not called"});
          page.model = &comparison->model;
          page.comparison = &*comparison->report;
          page.sequences = comparison->names;
          page.part_codes = comparison->part_codes;
          page.ablation = comparison->ablation ? &*comparison->ablation : nullptr;
        }
        return take(whole ? html_page(page) : html_part(page));
      },
      "comparison"_a.none(), "search"_a.none(), "title"_a, "whole"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "save_text",
      [](const Path& path, const std::string& text) {
        check(write_file_atomically(path.text, text.data(), text.size()));
      },
      "path"_a, "text"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace isobit::python
