// SPDX-License-Identifier: Apache-2.0
#include "help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "isobit/arrays.h"
#include "isobit/nearest.h"
#include "text.h"

namespace isobit::tool {
namespace {

constexpr size_t kColumn = 30;  // where descriptions begin
constexpr size_t kMinWidth = 60, kMaxWidth = 120, kWidthElsewhere = 100;

struct VerbText {
  std::string_view verb, group, example, document;
};
constexpr std::string_view kGrus = "GRUs", kWeights = "Low-bit weights", kTables = "Activation tables",
                           kChecks = "Checks and measurements", kThis = "The command itself";
constexpr VerbText kVerbs[] = {
    {"inspect", kGrus, "isobit inspect checkpoint.npz", "docs/tutorial.md"},
    {"quantize", kGrus,
     "isobit quantize checkpoint.npz --layer enc --calibrate data.npz --bits balanced -o enc.safetensors",
     "docs/tutorial.md"},
    {"tune", kGrus,
     "isobit tune checkpoint.npz --layer enc --calibrate data.npz --validate other.npz --target 35 -o enc.safetensors",
     "docs/tutorial.md"},
    {"run", kGrus, "isobit run enc.safetensors input.npy -o output.npy", "docs/tutorial.md"},
    {"export", kGrus, "isobit export c enc.safetensors -o enc_c --target cortex-m4", "docs/microcontrollers.md"},
    {"export c", kGrus, "isobit export c enc.safetensors -o enc_c --target cortex-m4", "docs/microcontrollers.md"},
    {"compare", kGrus, "isobit compare checkpoint.npz enc.safetensors --data data.npz --ablate", "docs/tutorial.md"},
    {"pack", kWeights, "isobit pack model.safetensors -o packed.safetensors --bits 4 --group 64",
     "docs/low_bit_import.md"},
    {"matmul", kWeights, "isobit matmul packed.safetensors:fc.weight x.npy -o y.npy --activations int8",
     "docs/low_bit_import.md"},
    {"conv", kWeights, "isobit conv packed.safetensors:conv1.weight x.npy -o y.npy --padding 1", "docs/conv.md"},
    {"table", kTables, "isobit table show silu", "docs/tables.md"},
    {"table fit", kTables, "isobit table fit silu -o silu.safetensors", "docs/tables.md"},
    {"table check", kTables, "isobit table check --all", "docs/tables.md"},
    {"table show", kTables, "isobit table show silu --svg silu.svg", "docs/tables.md"},
    {"table compare", kTables, "isobit table compare silu silu.safetensors", "docs/tables.md"},
    {"table export", kTables, "isobit table export silu --c DIR --hex silu.hex", "docs/tables.md"},
    {"table run", kTables, "isobit table run gelu x.npy -o y.npy", "docs/tables.md"},
    {"verify", kChecks, "isobit verify enc.safetensors", "docs/tutorial.md"},
    {"fingerprint", kChecks, "isobit fingerprint", "docs/numerics.md"},
    {"supported", kChecks, "isobit supported", "docs/command_line.md"},
    {"bench", kChecks, "isobit bench gru --hidden 256,1024 --batch 1,64", "docs/performance.md"},
    {"help", kThis, "isobit help table fit", "docs/command_line.md"},
    {"completion", kThis, "source <(isobit completion bash)", "docs/command_line.md"},
};

size_t terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kWidthElsewhere;
  return std::clamp<size_t>(size.ws_col, kMinWidth, kMaxWidth);
}

/// Breaks `text` between words; lines after the first begin with `indent` spaces, the first at column `at`.
std::string wrapped(const std::string& text, size_t at, size_t indent) {
  const size_t width = terminal_width();
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const size_t length = end - begin;
    const bool first = out.empty();
    if (!first && at + 1 + length > width) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!first) {
      out += ' ';
      ++at;
    }
    out.append(text, begin, length);
    at += length;
    begin = end + 1;
  }
  return out;
}

class WrappedFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = Formatter::make_help(app, std::move(name), mode), out;
    while (!text.empty()) {  // what is not indented and ends with a colon is a heading
      const size_t end = std::min(text.find('\n'), text.size() - 1);
      const std::string line = text.substr(0, end);
      const bool heading = line.size() > 1 && line.front() != ' ' && line.back() == ':';
      out += (heading ? styled(line, Style::kHeading, stdout) : line) + "\n";
      text.erase(0, end + 1);
    }
    return out;
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0, 0) + "\n\n";
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return row(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    return row(verb->get_name(), verb->get_description());
  }

 private:
  static std::string row(const std::string& name, const std::string& description) {
    std::string text = "  " + name;
    text += text.size() + 1 < kColumn ? std::string(kColumn - text.size(), ' ') : "\n" + std::string(kColumn, ' ');
    return text + wrapped(description, kColumn, kColumn) + "\n";
  }
};

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands(std::function<bool(const CLI::App*)>());
}

/// Calls `use` for the app and every verb with the words that lead there: "", "run", "table fit".
void for_each_verb(const CLI::App& app, const std::string& path,
                   const std::function<void(const CLI::App&, const std::string& path)>& use) {
  use(app, path);
  for (const CLI::App* verb : verbs_of(app))
    for_each_verb(*verb, path.empty() ? verb->get_name() : path + " " + verb->get_name(), use);
}

std::vector<std::string> option_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option_names(*option)) names.push_back(name);
  return names;
}

std::vector<std::string_view> views(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

std::string verb_list(const CLI::App& at) {
  std::string text;
  for (const CLI::App* verb : verbs_of(at)) text += " " + verb->get_name();
  return text;
}

/// The last verb that the parser met, and the words that lead there.
const CLI::App& last_verb(const CLI::App& app, std::string& name) {
  const CLI::App* at = &app;
  name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return *at;
}

Status no_verb(const CLI::App& at, const std::string& word) {
  std::vector<std::string> names;
  for_each_verb(at, "", [&](const CLI::App&, const std::string& path) {
    if (!path.empty()) names.push_back(path);
  });
  std::string hint = nearest_hint(word, views(names));
  if (hint.empty()) hint = "; one of" + verb_list(at);
  return {StatusCode::kInvalidArgument, "no verb " + escaped(word) + hint};
}

// ---------------------------------------------------------------------------------------------------------------
// Completion: each script walks from verb to verb ("/table/fit") and offers the verbs and options of the last.

constexpr std::string_view kWalk = R"(
  local verb= word
  for word in "${words_before[@]}"; do
    case "$verb/$word" in
      PATHS) verb="$verb/$word" ;;
    esac
  done
)";

std::string slashes(std::string path) {
  if (path.empty()) return path;
  std::replace(path.begin(), path.end(), ' ', '/');
  return "/" + path;
}

std::string walk(const CLI::App& app) {
  std::string paths, text(kWalk);
  for_each_verb(app, "", [&](const CLI::App&, const std::string& path) {
    if (!path.empty()) paths += (paths.empty() ? "" : " | ") + slashes(path);
  });
  const std::string_view place = "PATHS";
  return text.replace(text.find(place), place.size(), paths);
}

/// In single quotes, for a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// For every verb the words that may follow it, each as `item` writes it with its description.
std::string cases(const CLI::App& app, std::string (*item)(const std::string& word, const std::string& description)) {
  std::string text = "  case \"$verb\" in\n";
  for_each_verb(app, "", [&](const CLI::App& verb, const std::string& path) {
    text += "    '" + slashes(path) + "') list=(";
    for (const CLI::App* below : verbs_of(verb)) text += item(below->get_name(), below->get_description());
    for (const CLI::Option* option : verb.get_options())
      for (const std::string& name : option_names(*option)) text += item(name, option->get_description());
    text += ") ;;\n";
  });
  return text + "  esac\n";
}

std::string bash_script(const CLI::App& app) {
  const auto item = [](const std::string& word, const std::string&) { return " " + word; };
  return "# isobit completion bash; for one shell: source <(isobit completion bash)\n"
         "_isobit() {\n"
         "  local list=() words_before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")" +
         walk(app) + cases(app, item) +
         "  COMPREPLY=($(compgen -W \"${list[*]}\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
         "}\n"
         "complete -o bashdefault -o default -F _isobit isobit\n";
}

std::string zsh_script(const CLI::App& app) {
  const auto item = [](const std::string& word, const std::string& description) {
    return "\n      " + quoted(word + ":" + description);
  };
  return "#compdef isobit\n"
         "# isobit completion zsh; for one shell: source <(isobit completion zsh)\n"
         "_isobit() {\n"
         "  local -a list words_before=(\"${(@)words[2,CURRENT-1]}\")" +
         walk(app) + cases(app, item) +
         "  _describe isobit list\n"
         "  _files\n"
         "}\n"
         "if [[ ${funcstack[1]} == _isobit ]]; then _isobit \"$@\"; else compdef _isobit isobit; fi\n";
}

std::string fish_script(const CLI::App& app) {
  std::string text =
      "# isobit completion fish; for one shell: isobit completion fish | source\n"
      "function __isobit_verb\n"
      "  set -l verb ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    switch $verb/$word\n"
      "      case";
  for_each_verb(app, "", [&](const CLI::App&, const std::string& path) {
    if (!path.empty()) text += " " + slashes(path);
  });
  text +=
      "\n"
      "        set verb $verb/$word\n"
      "    end\n"
      "  end\n"
      "  test \"$verb\" = \"$argv[1]\"\n"
      "end\n";
  for_each_verb(app, "", [&](const CLI::App& verb, const std::string& path) {
    const std::string begin = "complete -c isobit -n " + quoted("__isobit_verb '" + slashes(path) + "'");
    for (const CLI::App* below : verbs_of(verb))
      text += begin + " -f -a " + below->get_name() + " -d " + quoted(below->get_description()) + "\n";
    for (const CLI::Option* option : verb.get_options()) {
      if (!option->nonpositional()) continue;
      text += begin;
      for (const std::string& name : option->get_snames()) text += " -s " + name;
      for (const std::string& name : option->get_lnames()) text += " -l " + name;
      if (option->get_type_size() != 0) text += " -r";
      text += " -d " + quoted(option->get_description()) + "\n";
    }
  });
  return text;
}

}  // namespace

void describe_verbs(CLI::App& app) {
  const auto formatter = std::make_shared<WrappedFormatter>();
  const std::function<void(CLI::App&, const std::string&)> describe = [&](CLI::App& at, const std::string& path) {
    at.formatter(formatter);
    for (const VerbText& text : kVerbs) {
      if (text.verb != path) continue;
      at.group(std::string(text.group));
      at.footer("Example:\n  " + std::string(text.example) + "\n\nMore: " + std::string(text.document));
    }
    for (CLI::App* verb : at.get_subcommands(std::function<bool(CLI::App*)>()))
      describe(*verb, path.empty() ? verb->get_name() : path + " " + verb->get_name());
  };
  describe(app, "");
  app.footer(
      "isobit help VERB, or isobit VERB --help: its options and an example\n\nMore: README.md, docs/tutorial.md");
}

Result<std::string> help_text(const CLI::App& app, const std::vector<std::string>& verb) {
  const CLI::App* at = &app;
  std::string name = app.get_name();
  for (const std::string& word : verb) {
    const auto verbs = verbs_of(*at);
    const auto found =
        std::find_if(verbs.begin(), verbs.end(), [&](const CLI::App* v) { return v->get_name() == word; });
    if (found == verbs.end()) return no_verb(*at, word);
    at = *found;
    name += " " + word;
  }
  return app.get_formatter()->make_help(at, name, CLI::AppFormatMode::Normal);
}

Result<std::string> completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(app);
  if (shell == "zsh") return zsh_script(app);
  if (shell == "fish") return fish_script(app);
  return Status(StatusCode::kInvalidArgument,
                "no completion for " + escaped(shell) + "; " + expected_one_of(shell, {"bash", "zsh", "fish"}));
}

std::string mistyped_verb(const CLI::App& app) {
  std::string name;
  const CLI::App& at = last_verb(app, name);
  if (verbs_of(at).empty()) return {};
  for (const std::string& word : at.remaining())
    if (!word.starts_with('-')) return no_verb(at, word).message();
  return {};
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string name;
  const CLI::App& at = last_verb(app, name);
  std::string what = error.what();
  // Every check() says itself what it refuses; the parser has put "--steps: " before that.
  if (error.get_name() == "ValidationError") what.erase(0, what.find(": ") + 2);
  if (error.get_name() == "RequiredError" && !verbs_of(at).empty()) what = "a verb is missing; one of" + verb_list(at);
  // The parser misses a required word first; but what was mistyped explains it.
  const std::vector<std::string> rest = at.remaining();
  const auto option = std::find_if(rest.begin(), rest.end(),
                                   [](const std::string& word) { return word.size() > 1 && word.front() == '-'; });
  if (const std::string verb = mistyped_verb(app); !verb.empty()) {
    what = verb;
  } else if (option != rest.end()) {
    const std::string word = option->substr(0, option->find('='));
    what = "no option " + escaped(word) + nearest_hint(word, views(option_names(at)));
  }
  return name + ": " + what + "\n" + name + " --help lists what it takes\n";
}

}  // namespace isobit::tool
