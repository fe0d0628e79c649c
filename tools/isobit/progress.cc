// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "text.h"

namespace isobit::tool {

Progress::Progress(std::string label, bool quiet)
    : label_(std::move(label)), shown_(!quiet && isatty(STDERR_FILENO) != 0), start_(Clock::now()), last_(start_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(double fraction, const std::string& note) {
  if (!shown_) return;
  const auto now = Clock::now();
  if (now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  fraction = std::clamp(fraction, 0.0, 1.0);
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(fraction * kWidth);
  std::string left;
  if (fraction > 0.01) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const auto seconds = std::llround(elapsed * (1 - fraction) / fraction);
    left =
        seconds < 60 ? format(", %lld s left", seconds) : format(", %lld min %lld s left", seconds / 60, seconds % 60);
  }
  std::fprintf(stderr, "\r\033[K%s [%s%s] %3d %%%s%s%s", label_.c_str(), std::string(filled, '#').c_str(),
               std::string(kWidth - filled, '.').c_str(), static_cast<int>(fraction * 100), left.c_str(),
               note.empty() ? "" : "; best ", note.c_str());
  std::fflush(stderr);
}

}  // namespace isobit::tool
