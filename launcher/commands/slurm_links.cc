#include "launcher/commands/slurm_links.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

using std::filesystem::path;

absl::Status ErrorOf(const path& file, const std::error_code& error) {
  return absl::UnavailableError(
      absl::StrCat(EscapeControl(file.string()), ": ", ErrnoText(error.value())));
}

// Whether a link may be made there: nothing is there, or a link to a program of that name.
absl::Status CheckFree(const path& link, const path& program) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::symlink_status(link, error);
  if (status.type() == std::filesystem::file_type::not_found) return absl::OkStatus();
  if (error) return ErrorOf(link, error);
  if (status.type() == std::filesystem::file_type::symlink) {
    const path target = std::filesystem::read_symlink(link, error);
    if (error) return ErrorOf(link, error);
    if (target.filename() == program.filename()) return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat(EscapeControl(link.string()), " exists, and is no link to ",
                   program.filename().string(), "; name another directory, or remove it"));
}

// Replaces what is there in one step.
absl::Status MakeLink(const path& link, const path& program) {
  const path made = absl::StrCat(link.string(), ".new-", getpid());
  std::error_code error;
  std::filesystem::create_symlink(program, made, error);
  if (error) return ErrorOf(made, error);
  std::filesystem::rename(made, link, error);
  if (!error) return absl::OkStatus();
  std::error_code ignored;
  std::filesystem::remove(made, ignored);
  return ErrorOf(link, error);
}

}  // namespace

absl::Status MakeLinks(const std::string& program, const std::vector<std::string>& names,
                       const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrorOf(directory, error);
  for (const std::string& name : names) RETURN_IF_ERROR(CheckFree(path(directory) / name, program));
  for (const std::string& name : names) RETURN_IF_ERROR(MakeLink(path(directory) / name, program));
  return absl::OkStatus();
}

std::string PathAdvice(const std::string& directory, const std::string& search) {
  for (const absl::string_view one : absl::StrSplit(search, ':', absl::SkipEmpty())) {
    std::error_code error;
    if (std::filesystem::equivalent(path(std::string(one)), directory, error)) return "";
  }
  return absl::StrCat("to find them: export PATH=", directory, ":$PATH\n");
}

}  // namespace cadre::launcher
