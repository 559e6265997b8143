#include "launcher/flags/parser.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/flags/nearest.h"

namespace cadre::launcher {
namespace {

// "-m,--module,--no-python,--no_python": all names of the flag, for CLI11.
std::string CliNames(const Flag& flag) {
  std::string names = absl::StrCat("--", flag.name);
  if (flag.short_name != '\0') absl::StrAppend(&names, ",-", std::string(1, flag.short_name));
  const std::string underscored = absl::StrReplaceAll(flag.name, {{"-", "_"}});
  if (underscored != flag.name) absl::StrAppend(&names, ",--", underscored);
  return names;
}

// The flags that an abbreviation may mean: "--node-rank, --node-name".
std::string Beginning(const Command& command, absl::string_view given) {
  std::string all;
  for (const Flag& flag : command.flags) {
    if (flag.old || !absl::StartsWith(flag.name, given)) continue;
    absl::StrAppend(&all, all.empty() ? "--" : ", --", flag.name);
  }
  return all;
}

std::string UnknownFlag(const Command& command, const std::string& argument) {
  const std::string given =
      absl::StrReplaceAll(argument.substr(0, argument.find('=')), {{"_", "-"}});
  std::vector<std::string> names;
  for (const Flag& flag : command.flags) names.push_back(flag.name);
  names.push_back("help");
  std::string nearest = Nearest(absl::StripPrefix(given, "--"), names);
  // The flags of mpirun and other launchers.
  const bool count = given == "--nprocs" || given == "-np" || given == "--np" || given == "-n";
  if (count && absl::c_linear_search(names, "nproc-per-node")) nearest = "nproc-per-node";
  // An old flag is not suggested, but what is written in its place.
  for (const Flag& flag : command.flags) {
    if (flag.old && flag.name == nearest) nearest = absl::StrCat("set ", flag.property);
  }
  std::string text = absl::StrCat("unknown flag '", argument, "'");
  const std::string begun = Beginning(command, absl::StripPrefix(given, "--"));
  if (given.size() > 2 && absl::StrContains(begun, ',') && !count) {
    absl::StrAppend(&text, "; it may be ", begun, ": write one of them out");
  } else if (!nearest.empty()) {
    absl::StrAppend(&text, "; did you mean '--", nearest, "'?");
  } else {
    absl::StrAppend(&text, "; see 'cadre ", command.name, " --help'");
  }
  return text;
}

absl::Status CheckPositionals(const Command& command, const Parsed& parsed) {
  if (command.takes_program || parsed.Has("help") || parsed.Has("help-all"))
    return absl::OkStatus();
  if (parsed.rest.size() > command.max_positionals) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument '", parsed.rest[command.max_positionals],
                     "'; usage: cadre ", command.name, " [options] ", command.positionals));
  }
  if (parsed.rest.size() < command.min_positionals) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an argument is missing; usage: cadre ", command.name, " [options] ", command.positionals));
  }
  return absl::OkStatus();
}

bool IsSpecFile(const std::string& argument) {
  return absl::EndsWith(argument, ".yaml") || absl::EndsWith(argument, ".yml");
}

bool HasValue(const Command& command, const std::function<bool(const Flag&)>& is_it) {
  const auto flag = absl::c_find_if(command.flags, is_it);
  return flag != command.flags.end() && !flag->value.empty();
}

// Whether the next argument is the value of the last flag in `argument`: "--role", "-r", "-mr".
bool TakesTheNext(const Command& command, const std::string& argument) {
  if (absl::StartsWith(argument, "--")) {
    const std::string name = absl::StrReplaceAll(argument.substr(2), {{"_", "-"}});
    return HasValue(command, [&](const Flag& flag) { return flag.name == name; });
  }
  for (size_t i = 1; i < argument.size(); ++i) {
    if (HasValue(command, [&](const Flag& flag) { return flag.short_name == argument[i]; })) {
      return i + 1 == argument.size();
    }
  }
  return false;
}

// torchrun's flags may be abbreviated, as in its users' scripts, if only one begins like that.
std::string WrittenOut(const Command& command, const std::string& argument) {
  if (!absl::StartsWith(argument, "--") || argument.size() < 3) return argument;
  const size_t end = std::min(argument.find('='), argument.size());
  const std::string given = absl::StrReplaceAll(argument.substr(2, end - 2), {{"_", "-"}});
  const Flag* found = nullptr;
  for (const Flag& flag : command.flags) {
    if (flag.name == given) return argument;
    if (!flag.torchrun || !absl::StartsWith(flag.name, given)) continue;
    if (found != nullptr) return argument;
    found = &flag;
  }
  if (found == nullptr || absl::StartsWith("help-all", given)) return argument;
  return absl::StrCat("--", found->name, argument.substr(end));
}

// Writes all flags out, and replaces `--name=` by `--name ""`, because CLI11 2.1 takes the former
// for a flag without its value and the next argument for that value. The program's arguments are
// not changed.
std::vector<std::string> WithEmptyValues(const Command& command,
                                         const std::vector<std::string>& arguments) {
  std::vector<std::string> all;
  size_t i = 0;
  for (; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string argument = WrittenOut(command, arguments[i]);
    if (!absl::StartsWith(argument, "-") && command.takes_program) break;
    all.push_back(argument);
    if (absl::EndsWith(argument, "=") &&
        TakesTheNext(command, argument.substr(0, argument.size() - 1))) {
      all.back().pop_back();
      all.push_back("");
    } else if (TakesTheNext(command, argument) && i + 1 < arguments.size()) {
      all.push_back(arguments[++i]);
    }
  }
  all.insert(all.end(), arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
  return all;
}

// CLI11's error, or our own text if users would not understand CLI11's.
std::string ParseError(const Command& command, const std::vector<std::string>& arguments,
                       const std::exception& error) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || !absl::StartsWith(argument, "--")) continue;
    const std::string name = absl::StrReplaceAll(argument.substr(2, equals - 2), {{"_", "-"}});
    const bool switched =
        name == "help" || name == "help-all" ||
        std::any_of(command.flags.begin(), command.flags.end(),
                    [&](const Flag& flag) { return flag.value.empty() && flag.name == name; });
    if (switched) {
      return absl::StrCat("--", name, " takes no value, got '", argument.substr(equals + 1), "'");
    }
  }
  return absl::StrReplaceAll(error.what(), {{"\n", " "}});
}

// The words that may be flags in the arguments. CLI11 compares each flag that it is given with all
// before it, which for the hundred flags of 'run' takes longer than anything else before a job
// starts; so it is given only these.
struct Mentioned {
  explicit Mentioned(const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments) {
      if (absl::StartsWith(argument, "--")) {
        names.insert(absl::StrReplaceAll(argument.substr(2, argument.find('=') - 2), {{"_", "-"}}));
      } else if (absl::StartsWith(argument, "-")) {
        letters += argument.substr(1);
      }
    }
  }
  bool Has(const Flag& flag) const {
    return names.count(flag.name) != 0 ||
           (flag.short_name != '\0' && absl::StrContains(letters, flag.short_name));
  }

  std::set<std::string> names;
  std::string letters;
};

struct Slot {
  std::vector<std::string> values;
  bool given = false;
};

void AddFlag(const Flag& flag, CLI::App& app, Slot& slot) {
  if (flag.value.empty()) {
    app.add_flag(CliNames(flag), slot.given)->disable_flag_override();
    return;
  }
  app.add_option(CliNames(flag), slot.values)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(flag.repeated ? CLI::MultiOptionPolicy::TakeAll
                                          : CLI::MultiOptionPolicy::TakeLast);
}

// `parsed` has the flags before a spec file, `parsed.rest` that file and all that follows.
absl::StatusOr<Parsed> ParseAfterSpec(const Command& command,
                                      const std::vector<std::string>& arguments,
                                      const Parsed& parsed) {
  const std::string& file = parsed.rest.front();
  if (const std::optional<std::string> given = parsed.Get(command.spec_flag)) {
    return absl::InvalidArgumentError(absl::StrCat("two job files, '", *given, "' and '", file,
                                                   "': leave one of them out, or put '--' before a "
                                                   "program of that name"));
  }
  std::vector<std::string> all(arguments.begin(), arguments.end() - parsed.rest.size());
  all.push_back(absl::StrCat("--", command.spec_flag, "=", file));
  all.insert(all.end(), parsed.rest.begin() + 1, parsed.rest.end());
  return ParseArguments(command, all);
}

constexpr size_t kHelpColumns = 100;

// The words one after the other, in lines that begin with `indent` spaces; the first line has them
// already.
std::string Wrapped(const std::vector<std::string>& words, size_t indent) {
  std::string text;
  size_t column = indent;
  for (const std::string& word : words) {
    if (column > indent && column + 1 + word.size() > kHelpColumns) {
      absl::StrAppend(&text, "\n", std::string(indent, ' '));
      column = indent;
    }
    absl::StrAppend(&text, column > indent ? " " : "", word);
    column += word.size() + (column > indent ? 1 : 0);
  }
  return text;
}

// `left` and, beside it or below, the text.
std::string HelpLine(std::string left, const std::string& help) {
  constexpr size_t kColumn = 30;
  if (left.size() + 2 > kColumn) {
    absl::StrAppend(&left, "\n", std::string(kColumn, ' '));
  } else {
    left.resize(kColumn, ' ');
  }
  return absl::StrCat(left, Wrapped(absl::StrSplit(help, ' '), kColumn), "\n");
}

std::string HelpLine(const Flag& flag) {
  std::string left = flag.short_name == '\0'
                         ? absl::StrCat("      --", flag.name)
                         : absl::StrCat("  -", std::string(1, flag.short_name), ", --", flag.name);
  if (!flag.value.empty()) absl::StrAppend(&left, " ", flag.value);
  return HelpLine(std::move(left), flag.help);
}

std::string HelpLines(const std::vector<Flag>& flags) {
  std::vector<std::string> groups;
  for (const Flag& flag : flags) {
    if (!absl::c_linear_search(groups, flag.group)) groups.push_back(flag.group);
  }
  std::stable_partition(groups.begin(), groups.end(),
                        [](const std::string& group) { return group != kServerGroup; });
  std::string text;
  for (const std::string& group : groups) {
    absl::StrAppend(&text, "\n", group, ":\n");
    for (const Flag& flag : flags) {
      if (flag.group == group) absl::StrAppend(&text, HelpLine(flag));
    }
  }
  return text;
}

// The flags of an ordinary day: torchrun's one after the other, because their meaning is known, and
// the others in a line each.
std::string EverydayLines(const std::vector<Flag>& flags) {
  std::vector<std::string> torchruns;
  std::string own;
  for (const Flag& flag : flags) {
    if (!flag.torchrun) {
      absl::StrAppend(&own, HelpLine(flag));
      continue;
    }
    torchruns.push_back(absl::StrCat(
        flag.short_name == '\0' ? "" : absl::StrCat("-", std::string(1, flag.short_name), "/"),
        "--", flag.name, flag.value.empty() ? "" : "=", flag.value));
  }
  std::string text;
  if (!torchruns.empty()) {
    absl::StrAppend(&text, "\ntorchrun's flags, with the meaning that they have there:\n  ",
                    Wrapped(torchruns, 2), "\n");
  }
  if (!own.empty()) absl::StrAppend(&text, "\nOptions:\n", own);
  return text;
}

}  // namespace

absl::StatusOr<Parsed> ParseArguments(const Command& command,
                                      const std::vector<std::string>& given) {
  const std::vector<std::string> arguments = WithEmptyValues(command, given);
  CLI::App app;
  // The help is made here; CLI11 would exit after printing its own.
  app.set_help_flag();
  app.prefix_command(command.takes_program);
  app.allow_extras(!command.takes_program);
  std::deque<Slot> slots;
  const Mentioned mentioned(arguments);
  for (const Flag& flag : command.flags) {
    Slot& slot = slots.emplace_back();
    if (mentioned.Has(flag)) AddFlag(flag, app, slot);
  }
  bool help = false;
  app.add_flag("--help,-h", help)->disable_flag_override();
  bool help_all = false;
  app.add_flag("--help-all,--help_all", help_all)->disable_flag_override();

  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(ParseError(command, given, error));
  }

  Parsed parsed;
  for (size_t i = 0; i < command.flags.size(); ++i) {
    if (slots[i].given) parsed.flags[command.flags[i].name] = {"1"};
    if (!slots[i].values.empty()) parsed.flags[command.flags[i].name] = slots[i].values;
  }
  if (help) parsed.flags["help"] = {"1"};
  if (help_all) parsed.flags["help-all"] = {"1"};
  parsed.rest = app.remaining();
  if (!parsed.rest.empty() && parsed.rest.front() == "--") {
    parsed.rest.erase(parsed.rest.begin());
    return parsed;
  }
  if (!command.spec_flag.empty() && !parsed.rest.empty() && IsSpecFile(parsed.rest.front())) {
    return ParseAfterSpec(command, arguments, parsed);
  }
  // torchrun removes the first one after a script too.
  if (parsed.rest.size() > 1 && parsed.rest[1] == "--" && command.takes_program &&
      (absl::EndsWith(parsed.rest[0], ".py") || parsed.Has("module") || parsed.Has("run-path"))) {
    parsed.rest.erase(parsed.rest.begin() + 1);
  }
  // CLI11 takes an unknown flag for the beginning of the program.
  for (const std::string& argument : parsed.rest) {
    if (absl::StartsWith(argument, "-") && argument.size() > 1) {
      return absl::InvalidArgumentError(UnknownFlag(command, argument));
    }
    if (command.takes_program) break;
  }
  RETURN_IF_ERROR(CheckPositionals(command, parsed));
  return parsed;
}

std::string HelpText(const Command& command, bool all) {
  std::string text = absl::StrCat(
      "Usage: cadre ", command.name, command.flags.empty() ? "" : " [options]",
      command.positionals.empty() ? "" : " ", command.positionals, "\n\n", command.summary, "\n");
  if (!command.description.empty()) absl::StrAppend(&text, "\n", command.description, "\n");
  std::vector<Flag> everyday;
  absl::c_copy_if(command.flags, std::back_inserter(everyday),
                  [](const Flag& flag) { return flag.everyday; });
  if (!all && !everyday.empty()) {
    const auto flags = absl::c_count_if(command.flags, [](const Flag& flag) { return !flag.old; });
    return absl::StrCat(text, EverydayLines(everyday), "\n'cadre ", command.name,
                        " --help-all' shows all ", flags, " flags",
                        command.properties == nullptr ? "" : ", and each PATH of --set", ".\n");
  }
  if (!command.details.empty()) absl::StrAppend(&text, "\n", command.details, "\n");
  absl::StrAppend(&text, HelpLines(command.flags));
  if (command.properties == nullptr) return text;
  absl::StrAppend(&text, "\nProperties of a job, for --set:\n");
  for (const Flag& property : command.properties()) {
    absl::StrAppend(
        &text, HelpLine(absl::StrCat("  ", property.name, "=", property.value), property.help));
  }
  return text;
}

}  // namespace cadre::launcher
