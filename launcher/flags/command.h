// The description of a subcommand: the table from which parsing, help, completion and the manual
// page are made. Plain values.
#ifndef CADRE_LAUNCHER_FLAGS_COMMAND_H_
#define CADRE_LAUNCHER_FLAGS_COMMAND_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cadre::launcher {

// The heading of flags that many commands share; the help shows them last.
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
  // The flag is also read from PET_<NAME>, as torchrun does.
  bool torchrun = false;
  // For a command with many flags: --help shows only these; --help-all shows every one.
  bool everyday = false;
  // The property of a job that it gives, by the path that --set has for it, if it gives just one.
  std::string property = "";
  // An earlier form, which is accepted: only --help-all still shows it.
  bool old = false;
};

struct Parsed {
  // By long name. A switch that is present has the value "1".
  std::map<std::string, std::vector<std::string>> flags;
  // The positional arguments; for a command with a program, the program and all that follows.
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
  // The first positional and everything after it belong to a program and are not parsed.
  bool takes_program = false;
  // It parses its arguments itself, because its flags have the syntax of another program: all of
  // them are in Parsed::rest, `--help` too.
  bool own_syntax = false;
  // With a program: if the first positional ends in .yaml or .yml and no "--" precedes it, it is
  // this flag's value, and flags may follow it. Empty: there is no such flag.
  std::string spec_flag;
  std::vector<Flag> flags;
  // Runs it; returns the exit status.
  int (*run)(const Parsed& parsed) = nullptr;
  // Further text for the help and the manual page.
  std::string description;
  // And for --help-all and the manual page alone.
  std::string details;
  // What its flag --set takes, if it has that one: the path of each property is the name.
  std::vector<Flag> (*properties)() = nullptr;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_COMMAND_H_
