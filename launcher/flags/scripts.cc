#include "launcher/flags/scripts.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {
namespace {

std::string Names(const std::vector<Command>& commands) {
  std::string names;
  for (const Command& command : commands)
    absl::StrAppend(&names, names.empty() ? "" : " ", command.name);
  return names;
}

// The flags that users are to write.
std::vector<Flag> Current(const Command& command) {
  std::vector<Flag> flags;
  for (const Flag& flag : command.flags) {
    if (!flag.old) flags.push_back(flag);
  }
  return flags;
}

std::string LongFlags(const Command& command) {
  std::string flags;
  for (const Flag& flag : Current(command)) absl::StrAppend(&flags, "--", flag.name, " ");
  return flags + "--help --help-all";
}

// The paths that may follow --set, each with `end`; empty: the command has no such flag.
std::string Paths(const Command& command, absl::string_view end) {
  std::string paths;
  if (command.properties == nullptr) return paths;
  for (const Flag& property : command.properties()) {
    // In place of NAME there may be any other.
    if (absl::EndsWith(property.name, ".NAME")) continue;
    absl::StrAppend(&paths, paths.empty() ? "" : " ", property.name, end);
  }
  return paths;
}

// For single quotes of a shell; brackets and colons are special in zsh's specifications.
std::string Quoted(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "("}, {"]", ")"}, {":", "\\:"}});
}

std::string Roff(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"\\", "\\e"}, {"-", "\\-"}, {"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
}

}  // namespace

std::string BashCompletion(const std::vector<Command>& commands) {
  std::string cases;
  for (const Command& command : commands) {
    const std::string paths = Paths(command, "=");
    absl::StrAppend(&cases, "    ", command.name, ") flags='", LongFlags(command), "'");
    if (!paths.empty()) absl::StrAppend(&cases, " paths='", paths, "'");
    absl::StrAppend(&cases, " ;;\n");
  }
  return absl::StrCat(
      "# bash completion for cadre\n"
      "_cadre() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flags paths\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W '",
      Names(commands),
      "' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n",
      cases,
      "  esac\n"
      "  if [ \"$before\" = --set ] && [ -n \"$paths\" ]; then\n"
      "    compopt -o nospace +o filenames\n"
      "    COMPREPLY=($(compgen -W \"$paths\" -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case $word in\n"
      "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) ;;\n"
      "    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
      "  esac\n"
      "}\n"
      "complete -o filenames -F _cadre cadre\n");
}

std::string ZshCompletion(const std::vector<Command>& commands) {
  std::string list;
  std::string cases;
  for (const Command& command : commands) {
    absl::StrAppend(&list, "    '", command.name, ":", Quoted(command.summary), "'\n");
    absl::StrAppend(&cases, "    ", command.name, ") _arguments");
    for (const Flag& flag : Current(command)) {
      // Of a path that is completed, "=" is the end.
      const std::string paths = flag.name == "set" ? Paths(command, "") : "";
      const std::string action = paths.empty() ? "_files" : "{compadd -S = -- " + paths + "}";
      absl::StrAppend(&cases, " '", flag.repeated ? "*" : "", "--", flag.name,
                      flag.value.empty() ? "" : "=", "[", Quoted(flag.help), "]",
                      flag.value.empty() ? "" : absl::StrCat(":", Quoted(flag.value), ":", action),
                      "'");
    }
    absl::StrAppend(&cases, " '*:file:_files' ;;\n");
  }
  return absl::StrCat(
      "#compdef cadre\n"
      "_cadre() {\n"
      "  local -a commands=(\n",
      list,
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe 'command' commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n",
      cases,
      "  esac\n"
      "}\n"
      "compdef _cadre cadre\n");
}

std::string FishCompletion(const std::vector<Command>& commands) {
  std::string script = "# fish completion for cadre\n";
  for (const Command& command : commands) {
    absl::StrAppend(&script, "complete -c cadre -n __fish_use_subcommand -f -a ", command.name,
                    " -d '", absl::StrReplaceAll(command.summary, {{"'", "\\'"}}), "'\n");
    for (const Flag& flag : Current(command)) {
      absl::StrAppend(&script, "complete -c cadre -n '__fish_seen_subcommand_from ", command.name,
                      "' -l ", flag.name);
      if (flag.short_name != '\0')
        absl::StrAppend(&script, " -s ", std::string(1, flag.short_name));
      if (!flag.value.empty()) absl::StrAppend(&script, " -r");
      const std::string paths = flag.name == "set" ? Paths(command, "=") : "";
      if (!paths.empty()) absl::StrAppend(&script, " -f -a '", paths, "'");
      absl::StrAppend(&script, " -d '", absl::StrReplaceAll(flag.help, {{"'", "\\'"}}), "'\n");
    }
  }
  return script;
}

std::string ManualPage(const std::vector<Command>& commands) {
  std::string page =
      ".TH CADRE 1\n.SH NAME\ncadre \\- launch distributed training and keep it alive\n"
      ".SH SYNOPSIS\n";
  for (const Command& command : commands) {
    absl::StrAppend(&page, ".B cadre ", command.name, "\n",
                    command.flags.empty() ? "" : "[options] ", Roff(command.positionals),
                    "\n.br\n");
  }
  for (const Command& command : commands) {
    absl::StrAppend(&page, ".SH CADRE ", command.name, "\n", Roff(command.summary), "\n");
    if (!command.description.empty()) {
      absl::StrAppend(&page, ".PP\n", Roff(command.description), "\n");
    }
    if (!command.details.empty()) absl::StrAppend(&page, ".PP\n", Roff(command.details), "\n");
    for (const Flag& flag : Current(command)) {
      absl::StrAppend(&page, ".TP\n.B ");
      if (flag.short_name != '\0') {
        absl::StrAppend(&page, "\\-", std::string(1, flag.short_name), ", ");
      }
      absl::StrAppend(&page, "\\-\\-", Roff(flag.name), flag.value.empty() ? "" : " ",
                      Roff(flag.value), "\n", Roff(flag.help), "\n");
    }
    if (command.properties == nullptr) continue;
    absl::StrAppend(&page, ".SS Properties of a job, for \\-\\-set\n");
    for (const Flag& property : command.properties()) {
      absl::StrAppend(&page, ".TP\n.B ", Roff(property.name), "=", Roff(property.value), "\n",
                      Roff(property.help), "\n");
    }
  }
  return page;
}

}  // namespace cadre::launcher
