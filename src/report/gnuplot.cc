// SPDX-License-Identifier: Apache-2.0
#include "report/gnuplot.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "isobit/report.h"
#include "isobit/text.h"

namespace isobit {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
File temporary_file() { return {std::tmpfile(), &std::fclose}; }

std::string content_of(std::FILE* file) {
  std::string text;
  std::rewind(file);
  std::array<char, 4096> buffer{};
  for (size_t count = 0; (count = std::fread(buffer.data(), 1, buffer.size(), file)) > 0;)
    text.append(buffer.data(), count);
  return text;
}

}  // namespace

Result<std::string> run_gnuplot(const std::string& script) {
  const File in = temporary_file(), out = temporary_file(), error = temporary_file();
  if (in == nullptr || out == nullptr || error == nullptr ||
      std::fwrite(script.data(), 1, script.size(), in.get()) != script.size() || std::fflush(in.get()) != 0) {
    return Status(StatusCode::kIo, format("a temporary file for gnuplot: %s", std::strerror(errno)));
  }
  std::rewind(in.get());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(in.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(out.get()), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(error.get()), STDERR_FILENO);
  std::string program = "gnuplot", defaults = "-d";  // no ~/.gnuplot: it could change the picture
  char* const arguments[] = {program.data(), defaults.data(), nullptr};
  pid_t child = 0;
  const int refused = ::posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (refused != 0) {
    return Status(StatusCode::kFailedPrecondition,
                  format("gnuplot, which draws the SVG, cannot be run: %s; install it (Debian: gnuplot-nox)",
                         std::strerror(refused)));
  }
  int state = 0;
  while (::waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) return Status(StatusCode::kIo, format("gnuplot: %s", std::strerror(errno)));
  }
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) {
    std::string message = content_of(error.get());
    message.erase(0, message.find_first_not_of(" \n"));
    std::replace(message.begin(), message.end(), '\n', ' ');
    return Status(StatusCode::kIo, "gnuplot failed: " + message.substr(0, 300));
  }
  std::string svg = content_of(out.get());
  if (svg.find("</svg>") == std::string::npos) return Status(StatusCode::kIo, "gnuplot wrote no complete SVG");
  return svg;
}

Status check_gnuplot() { return run_gnuplot("set terminal svg\nplot 0\n").status(); }

}  // namespace isobit
