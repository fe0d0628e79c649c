// SPDX-License-Identifier: Apache-2.0
// What is said about the command line itself: --help, shell completion, and words that the parser does not know. All of
// it is made from the parser's own lists.
#ifndef ISOBIT_TOOLS_HELP_H_
#define ISOBIT_TOOLS_HELP_H_

#include <string>
#include <vector>

#include "isobit/status.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace isobit::tool {

/// Groups, an example and a document for every verb that the app has by now; lines as wide as the terminal.
void describe_verbs(CLI::App& app);

/// --help of the app, or of the verb whose words are given ("table", "fit"); an unknown one is refused with the
/// nearest.
Result<std::string> help_text(const CLI::App& app, const std::vector<std::string>& verb);

/// A script for `shell`: bash, zsh or fish.
Result<std::string> completion_script(const CLI::App& app, const std::string& shell);

/// A word where a verb should be, with the nearest one; empty: there is none.
std::string mistyped_verb(const CLI::App& app);

/// Why a command line was refused: the word that is no verb or option, with the nearest, or else what the parser says.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_HELP_H_
