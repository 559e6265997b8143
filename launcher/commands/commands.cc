#include "launcher/commands/commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/flags/config_file.h"

extern char** environ;

namespace cadre::launcher {

int Fail(int status, absl::string_view text) {
  std::string lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StrAppend(&lines, "cadre: ", EscapeControl(line), "\n");
  }
  fwrite(lines.data(), 1, lines.size(), stderr);
  fflush(stderr);
  return status;
}

Flag OutputFlag() { return {"output", "plain|json", "Form of what is printed [plain]."}; }

absl::StatusOr<bool> AsksForJson(absl::string_view output) {
  if (output == "json" || output == "plain") return output == "json";
  return absl::InvalidArgumentError(
      absl::StrCat("--output: expected plain or json, got '", output, "'"));
}

bool OnTerminal() {
  const char* term = getenv("TERM");
  return isatty(STDOUT_FILENO) && term != nullptr && absl::string_view(term) != "dumb";
}

bool ShowsColor() {
  const char* no_color = getenv("NO_COLOR");
  return OnTerminal() && (no_color == nullptr || no_color[0] == '\0');
}

int Print(absl::string_view text) {
  const bool written = fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (fflush(stdout) == 0 && written) return 0;
  return Fail(kExitInternal, absl::StrCat("cannot write to standard output: ", strerror(errno)));
}

absl::StatusOr<Settings> MachineSettings(const Parsed& parsed, const std::vector<Flag>& flags,
                                         absl::string_view section,
                                         const std::vector<Flag>& in_file) {
  std::map<std::string, std::string> environment = ReadEnvironment();
  const auto config = environment.find("CADRE_CONFIG");
  absl::StatusOr<std::map<std::string, Setting>> file =
      ReadConfig(config == environment.end() ? "" : config->second, section, in_file);
  RETURN_IF_ERROR(file.status());
  return Settings(parsed, std::move(environment), flags, *std::move(file));
}

absl::StatusOr<Settings> ClientSettings(const Parsed& parsed, const std::vector<Flag>& flags) {
  return MachineSettings(parsed, flags, "client", ControlFlags());
}

absl::StatusOr<JobSource> OpenJob(const Parsed& parsed, const Settings& settings) {
  absl::StatusOr<JobSource> source =
      JobSource::Of(settings, parsed.rest.empty() ? "" : parsed.rest[0]);
  if (source.ok() && !source->chosen().empty()) Fail(0, source->chosen());
  return source;
}

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace cadre::launcher
