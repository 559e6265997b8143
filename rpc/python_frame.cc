#include "rpc/python_frame.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace cadre::rpc {
namespace {

// The package `cadre` of a program is ours, wherever it lies (an archive's, a checkout's), and so
// is the start hook.
bool IsCadres(absl::string_view file) {
  if (absl::EndsWith(file, "/sitecustomize.py")) return true;
  const size_t folder = file.rfind("/cadre/");
  if (folder == file.npos) return false;
  const absl::string_view name = file.substr(folder + 7);
  if (absl::StrContains(name, "/")) return false;
  return absl::StartsWith(name, "_") || name == "checkpoint.py" || name == "torch_backend.py" ||
         name == "torch_rendezvous.py";
}

// "/venv/lib/python3.11/site-packages/package/"; of a module that is no package its file. Empty: it
// is not installed.
std::string PackageFolder(absl::string_view file) {
  for (const absl::string_view packages : {"/site-packages/", "/dist-packages/"}) {
    const size_t found = file.rfind(packages);
    if (found == file.npos) continue;
    const size_t end = file.find('/', found + packages.size());
    return std::string(file.substr(0, end == file.npos ? end : end + 1));
  }
  return "";
}

// Python's own start of a module.
bool IsRunpys(const PythonFrame& frame) {
  return absl::StrContains(frame.file, "runpy") &&
         (absl::StartsWith(frame.function, "_run_") || frame.function == "run_module");
}

// "/venv/lib/python3" of "/venv/bin/train", as pip makes it. Empty: it is no such script.
std::string PackagesBeside(const PythonFrame& frame) {
  const size_t folder = frame.file.rfind("/bin/");
  if (folder == std::string::npos || frame.function != "<module>" ||
      frame.file.find_first_of("/.", folder + 5) != std::string::npos) {
    return "";
  }
  return frame.file.substr(0, folder) + "/lib/python3";
}

}  // namespace

std::optional<PythonFrame> ParsePythonFrame(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "  File \"")) return std::nullopt;
  constexpr absl::string_view kLine = "\", line ";
  // The last: a file's name may hold it too.
  const size_t end = line.rfind(kLine);
  if (end == line.npos) return std::nullopt;
  PythonFrame frame;
  frame.file = std::string(line.substr(0, end));
  line.remove_prefix(end + kLine.size());
  const size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  if (!absl::SimpleAtoi(line.substr(0, digits), &frame.line)) return std::nullopt;
  line.remove_prefix(digits);
  absl::ConsumePrefix(&line, ",");
  if (absl::ConsumePrefix(&line, " in ")) frame.function = std::string(line);
  return frame;
}

bool IsInstalledPython(absl::string_view file) {
  return absl::StrContains(file, "/site-packages/") || absl::StrContains(file, "/dist-packages/") ||
         absl::StrContains(file, "/lib/python3") || absl::StartsWith(file, "<") || IsCadres(file);
}

void OwnPython::See(const PythonFrame& frame) {
  if (outer_ == Outer::kOther) return;
  if (outer_ != Outer::kScript && IsRunpys(frame)) {
    outer_ = Outer::kRunpy;
    return;
  }
  if (outer_ == Outer::kNothing) {
    packages_ = PackagesBeside(frame);
    outer_ = packages_.empty() ? Outer::kOther : Outer::kScript;
    return;
  }
  if (outer_ == Outer::kRunpy || absl::StartsWith(frame.file, packages_)) {
    package_ = PackageFolder(frame.file);
  }
  outer_ = Outer::kOther;
}

bool OwnPython::Has(absl::string_view file) const {
  return !IsInstalledPython(file) || (!package_.empty() && absl::StartsWith(file, package_));
}

absl::string_view FileName(const PythonFrame& frame) {
  const absl::string_view file = frame.file;
  return file.substr(file.rfind('/') + 1);
}

}  // namespace cadre::rpc
