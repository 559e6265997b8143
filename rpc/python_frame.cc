#include "rpc/python_frame.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace cadre::rpc {

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
         absl::StrContains(file, "/lib/python3") || absl::StartsWith(file, "<");
}

absl::string_view FileName(const PythonFrame& frame) {
  const absl::string_view file = frame.file;
  return file.substr(file.rfind('/') + 1);
}

}  // namespace cadre::rpc
