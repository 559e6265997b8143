// Finds out what kind of program the user's is, and which Python runs it.
#include "launcher/environment/program.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/scoped_fd.h"

namespace cadre::launcher {
namespace {

namespace fs = std::filesystem;
using absl::string_view;

constexpr size_t kLooked = 4096;
constexpr size_t kScriptLooked = size_t{1} << 20;
constexpr size_t kProgramLooked = size_t{1} << 30;
constexpr char kElf[] =
    "\x7f"
    "ELF";
constexpr char kZip[] = "PK\x03\x04";

// The beginning of a file, mapped while the object lives; empty if it cannot be read.
class Beginning {
 public:
  Beginning(const std::string& path, size_t most) {
    const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info = {};
    if (!fd.ok() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return;
    size_ = std::min(most, static_cast<size_t>(info.st_size));
    if (size_ == 0) return;
    data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data_ == MAP_FAILED) size_ = 0;
  }
  ~Beginning() {
    if (size_ > 0) munmap(data_, size_);
  }
  Beginning(const Beginning&) = delete;
  Beginning& operator=(const Beginning&) = delete;

  string_view text() const {
    return size_ == 0 ? string_view() : string_view(static_cast<const char*>(data_), size_);
  }
  // Whether one string of a string table is `name`.
  bool HasString(const char* name) const {
    const size_t size = strlen(name) + 2;
    const std::string all = std::string(1, '\0') + name + std::string(1, '\0');
    return size_ > 0 && memmem(data_, size_, all.data(), size) != nullptr;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

bool ImportsMpi(string_view script) {
  for (const string_view line : absl::StrSplit(script, '\n')) {
    string_view words = absl::StripAsciiWhitespace(line);
    const bool imports =
        absl::ConsumePrefix(&words, "import ") || absl::ConsumePrefix(&words, "from ");
    words = absl::StripLeadingAsciiWhitespace(words);
    if (!imports || !absl::ConsumePrefix(&words, "mpi4py")) continue;
    if (words.empty() || (!absl::ascii_isalnum(words[0]) && words[0] != '_')) return true;
  }
  return false;
}

}  // namespace

bool IsForPython(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return fs::is_regular_file(path + "/__main__.py", error);
  const Beginning file(path, kLooked);
  const string_view text = file.text();
  if (absl::StartsWith(text, kZip)) return true;
  if (absl::EndsWith(path, ".sh") || text.empty() || access(path.c_str(), X_OK) == 0 ||
      absl::StrContains(text, '\0'))
    return false;
  if (!absl::StartsWith(text, "#!")) return true;
  return absl::StrContains(text.substr(0, text.find('\n')), "python");
}

bool CallsMpi(const std::string& path) {
  if (absl::EndsWith(path, ".py")) return ImportsMpi(Beginning(path, kScriptLooked).text());
  const Beginning file(path, kProgramLooked);
  return absl::StartsWith(file.text(), kElf) &&
         (file.HasString("MPI_Init") || file.HasString("MPI_Init_thread"));
}

namespace {

bool IsSet(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found != environment.end() && !found->second.empty();
}

}  // namespace

std::string PythonFor(const std::map<std::string, std::string>& environment,
                      const std::filesystem::path& program) {
  if (IsSet(environment, "PYTHON_EXEC")) return environment.at("PYTHON_EXEC");
  std::error_code error;
  if (IsSet(environment, "VIRTUAL_ENV")) {
    const std::filesystem::path active =
        std::filesystem::path(environment.at("VIRTUAL_ENV")) / "bin" / "python3";
    return std::filesystem::exists(active, error) ? active.string() : "";
  }
  if (IsSet(environment, "CONDA_PREFIX")) return "";
  const std::filesystem::path folder = program.parent_path();
  const std::filesystem::path python = folder / "python3";
  // PEP 405: this file makes a directory a virtual environment.
  const bool environment_here =
      std::filesystem::exists(folder.parent_path() / "pyvenv.cfg", error) &&
      std::filesystem::exists(python, error);
  return environment_here ? python.string() : "";
}

std::filesystem::path ThisProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

}  // namespace cadre::launcher
