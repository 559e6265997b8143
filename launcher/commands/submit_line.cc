#include "launcher/commands/submit_line.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "launcher/slurm/sbatch_options.h"

namespace cadre::launcher {
namespace {

std::vector<Option> Table(const std::vector<Flag>& own) {
  std::vector<Option> table = {{"help-all", '\0', OptionValue::kNone}};
  std::set<std::string> names = {"help-all"};
  const auto add = [&](const std::string& name, char short_name, OptionValue value) {
    if (names.insert(name).second) table.push_back({name, short_name, value});
  };
  // sbatch's first, because its --output has a short name.
  for (const Option& option : SbatchTable()) {
    if (option.name == "usage" || option.name == "version") continue;
    add(option.name, option.short_name, option.value);
  }
  for (const Flag& flag : own) {
    const OptionValue value = flag.value.empty() ? OptionValue::kNone : OptionValue::kRequired;
    add(flag.name, flag.short_name, value);
    add(absl::StrReplaceAll(flag.name, {{"-", "_"}}), '\0', value);
  }
  return table;
}

bool IsOwn(const GivenOption& option, const std::string& name, const std::vector<Flag>& own) {
  if (option.name == "help" || option.name == "help-all") return true;
  if (option.name == "output") {
    return option.place == "--output" && (option.value == "plain" || option.value == "json");
  }
  for (const Flag& flag : own) {
    if (flag.name == name) return true;
  }
  return false;
}

void Take(const ParsedOptions& parsed, const std::vector<Flag>& own, SubmitLine* line) {
  for (const GivenOption& option : parsed.options) {
    const std::string name = absl::StrReplaceAll(option.name, {{"_", "-"}});
    if (IsOwn(option, name, own)) {
      line->own.flags[name].push_back(option.has_value ? option.value : "1");
    } else {
      line->sbatch.push_back(option);
    }
  }
}

}  // namespace

absl::StatusOr<SubmitLine> ReadSubmitLine(const std::vector<std::string>& arguments,
                                          const std::vector<Flag>& own) {
  ASSIGN_OR_RETURN(ParsedOptions parsed, ParseOptions(arguments, Table(own)));
  SubmitLine line;
  Take(parsed, own, &line);
  // A "--" in front of the rest ended the flags, unless it is the value of the last one.
  const size_t before = arguments.size() - parsed.rest.size();
  line.is_program = before > 0 && arguments[before - 1] == "--" &&
                    (parsed.options.empty() || parsed.options.back().value != "--");
  line.rest = std::move(parsed.rest);
  return line;
}

absl::Status ReadFlagsAfterFile(const std::vector<Flag>& own, SubmitLine* line) {
  const std::vector<std::string> after(line->rest.begin() + 1, line->rest.end());
  ASSIGN_OR_RETURN(const ParsedOptions parsed,
                   ParseOptions(after, Table(own), AfterFirstWord::kOptionsToo));
  if (!parsed.rest.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", parsed.rest[0],
                                                   "': the file of a job has no arguments"));
  }
  Take(parsed, own, line);
  line->rest.resize(1);
  return absl::OkStatus();
}

std::vector<Flag> WithSbatchFlags(std::vector<Flag> own) {
  std::set<std::string> names = {"help"};
  for (Flag& flag : own) {
    flag.everyday = true;
    names.insert(flag.name);
  }
  for (const SbatchFlag& flag : SbatchFlags()) {
    const bool shown = flag.effect == SbatchEffect::kMapped && flag.form != nullptr;
    if (!shown || !names.insert(flag.name).second) continue;
    Flag same = {flag.name, flag.form, flag.text, "Flags of sbatch"};
    same.short_name = flag.short_name;
    own.push_back(std::move(same));
  }
  return own;
}

}  // namespace cadre::launcher
