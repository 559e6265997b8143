// A subcommand as it looks from outside: the one table from which parsing, help, completion and
// the manual page are made. Plain values.
#ifndef CADRE_LAUNCHER_FLAGS_COMMAND_H_
#define CADRE_LAUNCHER_FLAGS_COMMAND_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cadre::launcher {

// The heading of flags that many commands share; the help has them at its end.
inline constexpr char kServerGroup[] = "Server";

struct Flag {
  // Long name with dashes, without the leading two; underscores are accepted in place of dashes.
  std::string name;
  // The name of the value in the help; empty for a switch.
  std::string value;
  std::string help;
  // Heading in the help.
  std::string group = "Options";
  char short_name = '\0';
  bool repeated = false;
  // Also read from PET_<NAME>, as torchrun does.
  bool torchrun = false;
  // Of a command with many flags: one of those that --help shows; --help-all shows every one.
  bool everyday = false;
};

struct Parsed {
  // By long name. A switch that was given has the value "1".
  std::map<std::string, std::vector<std::string>> flags;
  // The arguments that are no flags; for a command with a program, the program and all that
  // follows.
  std::vector<std::string> rest;

  bool Has(const std::string& name) const { return flags.count(name) > 0; }
  std::optional<std::string> Get(const std::string& name) const {
    const auto it = flags.find(name);
    if (it == flags.end() || it->second.empty()) return std::nullopt;
    return it->second.back();
  }
  std::string GetOr(const std::string& name, const std::string& fallback) const {
    return Get(name).value_or(fallback);
  }
};

struct Command {
  std::string name;
  std::string summary;
  // Positional arguments as the usage line shows them: "JOB", "[--] PROGRAM [ARGUMENT...]".
  std::string positionals;
  size_t min_positionals = 0;
  size_t max_positionals = 0;
  // The first positional and everything after it belong to a program and are not looked at.
  bool takes_program = false;
  // With a program: where the first positional ends in .yaml or .yml and no "--" stands before it,
  // it is this flag's value, and flags go on after it. Empty: no such flag.
  std::string spec_flag;
  std::vector<Flag> flags;
  // Runs it; returns the exit status.
  int (*run)(const Parsed& parsed) = nullptr;
  // Further text for the help and the manual page.
  std::string description;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_COMMAND_H_
