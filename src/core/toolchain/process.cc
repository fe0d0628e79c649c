// SPDX-License-Identifier: Apache-2.0
#include "core/toolchain/process.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

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

Result<ProcessResult> run_process(const std::vector<std::string>& words, std::string_view input) {
  const File in = temporary_file(), out = temporary_file(), error = temporary_file();
  if (in == nullptr || out == nullptr || error == nullptr ||
      (!input.empty() && std::fwrite(input.data(), 1, input.size(), in.get()) != input.size()) ||
      std::fflush(in.get()) != 0)
    return Status(StatusCode::kIo, "a temporary file for " + words[0] + ": " + std::strerror(errno));
  std::rewind(in.get());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(in.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(out.get()), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(error.get()), STDERR_FILENO);
  std::vector<std::string> copies = words;  // posix_spawnp takes no const
  std::vector<char*> arguments;
  arguments.reserve(copies.size() + 1);
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int refused = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (refused != 0)
    return Status(StatusCode::kFailedPrecondition, words[0] + " cannot be run: " + std::strerror(refused));
  int state = 0;
  while (::waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) return Status(StatusCode::kIo, words[0] + ": " + std::strerror(errno));
  }
  return ProcessResult{WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state), content_of(out.get()),
                       content_of(error.get())};
}

Result<WorkFolder> WorkFolder::create(std::string_view purpose) {
  std::error_code error;
  std::string pattern =
      (std::filesystem::temp_directory_path(error) / ("isobit-" + std::string(purpose) + "-XXXXXX")).string();
  if (error || ::mkdtemp(pattern.data()) == nullptr)
    return Status(StatusCode::kIo, pattern + ": no temporary folder can be made there; TMPDIR names another place");
  return WorkFolder(pattern);
}

Status WorkFolder::write(const std::string& name, std::string_view text) const {
  std::ofstream out(file(name), std::ios::binary);
  out << text;
  out.close();
  return out ? Status() : Status(StatusCode::kIo, file(name) + ": cannot be written");
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace isobit
