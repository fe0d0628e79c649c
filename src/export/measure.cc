// SPDX-License-Identifier: Apache-2.0
// Size, stack and instructions of exported C on an emulated Cortex-M: arm-none-eabi-gcc and qemu-system-arm.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <map>
#include <sstream>

#include "core/toolchain/c_source.h"
#include "core/toolchain/process.h"
#include "cortex_m_files.h"  // made by CMake
#include "isobit/export.h"

namespace isobit {
namespace {

constexpr const char* kCompiler = "arm-none-eabi-gcc";
constexpr const char* kSymbols = "arm-none-eabi-nm";
constexpr const char* kEmulator = "qemu-system-arm";

std::vector<std::string> split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// A line of boards.txt.
struct Board {
  std::string machine;
  std::vector<std::string> compiler, timer, memories;
};
Result<Board> board_of(CTarget core) {
  std::istringstream lines(kBoards);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream stream(line);
    for (std::string field; std::getline(stream, field, '|');) fields.push_back(field);
    if (fields.size() != 5 || split(fields[0]) != std::vector<std::string>{std::string(to_string(core))}) continue;
    return Board{split(fields[1])[0], split(fields[2]), split(fields[3]), split(fields[4])};
  }
  return Status(StatusCode::kInvalidArgument,
                "core " + std::string(to_string(core)) + " is no Cortex-M; give cortex-m3, m4, m7, m33 or m55");
}

/// run_process() of what must succeed.
Result<ProcessResult> succeed(const std::vector<std::string>& words) {
  ISOBIT_ASSIGN_OR_RETURN(ProcessResult run, run_process(words));
  if (run.exit_status == 0) return run;
  return Status(StatusCode::kIo, words[0] + " failed (exit status " + std::to_string(run.exit_status) +
                                     "): " + (run.error + run.output).substr(0, 500));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// "instructions 123" of the program's text.
int64_t number_after(const std::string& text, const std::string& word) {
  int64_t value = -1;
  const size_t at = text.find(word + " ");
  if (at != std::string::npos) std::from_chars(text.data() + at + word.size() + 1, text.data() + text.size(), value);
  return value;
}

}  // namespace

Result<CMeasurement> measure_c_export(const CExport& code, CTarget core, const std::string& optimisation) {
  ISOBIT_ASSIGN_OR_RETURN(const Board board, board_of(core));
  if (code.measure_program.empty())
    return Status(StatusCode::kUnsupported, "a table is one look-up, which is not measured");
  ISOBIT_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::create("measure"));
  for (const ExportedFile& file : code.files) ISOBIT_RETURN_IF_ERROR(folder.write(file.name, file.text));
  ISOBIT_RETURN_IF_ERROR(folder.write("machine.c", kMachineC));
  ISOBIT_RETURN_IF_ERROR(folder.write("machine.h", kMachineH));
  ISOBIT_RETURN_IF_ERROR(folder.write("machine.ld", kMachineLd));
  ISOBIT_RETURN_IF_ERROR(folder.write("measure.c", code.measure_program));

  CMeasurement out;
  out.core = core;
  out.optimisation = optimisation;
  ISOBIT_ASSIGN_OR_RETURN(const ProcessResult compiler, succeed({kCompiler, "--version"}));
  ISOBIT_ASSIGN_OR_RETURN(const ProcessResult emulator, succeed({kEmulator, "--version"}));
  out.compiler = first_line(compiler.output);
  out.emulator = first_line(emulator.output);

  const std::string program = folder.file("measure.elf");
  std::vector<std::string> words = {kCompiler,        "-std=c99", "-ffreestanding", "-fbuiltin", "-ffunction-sections",
                                    "-fdata-sections"};
  for (const std::string& word : split(optimisation)) words.push_back(word);
  for (const auto& list : {board.compiler, board.timer}) words.insert(words.end(), list.begin(), list.end());
  words.insert(words.end(), {"-I", folder.path(), "-nostdlib", "-nostartfiles", "-Wl,--gc-sections"});
  for (const std::string& memory : board.memories) words.push_back("-Wl,--defsym=" + memory);
  // Only on its own core does the code of a target use, and have to have, its instructions.
  if (core != code.target) words.push_back("-D" + upper_case(code.name) + "_PORTABLE");
  words.insert(words.end(),
               {"-T", folder.file("machine.ld"), "-o", program, folder.file("machine.c"), folder.file("measure.c"),
                folder.file(code.name + ".c"), folder.file(code.name + "_data.c"), "-lgcc"});
  ISOBIT_RETURN_IF_ERROR(succeed(words).status());

  // Functions of the code begin with its name; what is neither of those nor of the machine comes from the compiler.
  ISOBIT_ASSIGN_OR_RETURN(const ProcessResult symbols, succeed({kSymbols, "--print-size", program}));
  std::istringstream lines(symbols.output);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> fields = split(line);
    if (fields.size() != 4 || (fields[2] != "t" && fields[2] != "T" && fields[2] != "W")) continue;
    const int64_t bytes = std::stoll(fields[1], nullptr, 16);
    const std::string& symbol = fields[3];
    if (symbol == code.name + "_selftest") continue;
    if (symbol.starts_with(code.name + "_")) {
      out.code_bytes += bytes;
    } else if (symbol.starts_with("__") || symbol.starts_with("mem")) {
      out.helpers.push_back(symbol);
      out.helper_bytes += bytes;
    }
  }

  ISOBIT_ASSIGN_OR_RETURN(
      const ProcessResult run,
      succeed({kEmulator, "-M", board.machine, "-icount", "shift=6", "-semihosting-config", "enable=on,target=native",
               "-display", "none", "-monitor", "none", "-serial", "none", "-kernel", program}));
  out.instructions = number_after(run.error, "instructions");
  out.stack_bytes = number_after(run.error, "stack");
  if (out.instructions < 0 || out.stack_bytes < 0)
    return Status(StatusCode::kIo, std::string(kEmulator) + " said '" + run.error.substr(0, 200) +
                                       "', must say the number of instructions");
  return out;
}

}  // namespace isobit
