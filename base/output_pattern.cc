#include "base/output_pattern.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace cadre {
namespace {

// Slurm's limit.
constexpr uint32_t kMaxWidth = 10;
// What Slurm writes for the index of a job that is not in an array.
constexpr char kNoArrayIndex[] = "4294967294";

std::string Padded(absl::string_view number, uint32_t width) {
  return absl::StrCat(std::string(width - std::min<size_t>(width, number.size()), '0'), number);
}

// The step's number is not known as one if it is that of the batch script.
bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// Returns false for a letter that stands for nothing.
bool AppendField(char letter, uint32_t width, const OutputPatternFields& fields, std::string* out) {
  switch (letter) {
    case '%':
      *out += '%';
      return true;
    case 'j':
      *out += Padded(fields.job_id, width);
      return true;
    case 'A':
      *out += Padded(fields.array_id.empty() ? fields.job_id : fields.array_id, width);
      return true;
    case 'J':
      absl::StrAppend(out, Padded(fields.job_id, width));
      if (IsNumber(fields.step_id)) absl::StrAppend(out, ".", fields.step_id);
      return true;
    case 'a':
      *out += Padded(fields.array_index.empty() ? kNoArrayIndex : fields.array_index, width);
      return true;
    case 's':
      *out += IsNumber(fields.step_id) ? Padded(fields.step_id, width) : fields.step_id;
      return true;
    case 'x':
      *out += fields.job_name;
      return true;
    case 'u':
      *out += fields.user;
      return true;
    case 'N':
      *out += fields.host.substr(0, fields.host.find('.'));
      return true;
    case 'n':
      *out += Padded(absl::StrCat(fields.node), width);
      return true;
    case 't':
      *out += Padded(absl::StrCat(fields.rank), width);
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string ExpandOutputPattern(absl::string_view pattern, const OutputPatternFields& fields) {
  if (absl::StrContains(pattern, "\\")) return absl::StrReplaceAll(pattern, {{"\\", ""}});
  std::string path;
  while (!pattern.empty()) {
    const size_t percent = std::min(pattern.find('%'), pattern.size());
    absl::StrAppend(&path, pattern.substr(0, percent));
    pattern.remove_prefix(percent);
    if (pattern.empty()) break;
    size_t digits = 0;
    while (digits + 1 < pattern.size() && absl::ascii_isdigit(pattern[digits + 1])) ++digits;
    uint32_t width = 0;
    if (digits > 0 && !absl::SimpleAtoi(pattern.substr(1, digits), &width)) width = kMaxWidth;
    const size_t letter = digits + 1;
    const bool replaced = letter < pattern.size() &&
                          AppendField(pattern[letter], std::min(width, kMaxWidth), fields, &path);
    const size_t length = replaced ? letter + 1 : 1;
    if (!replaced) path += '%';
    pattern.remove_prefix(length);
  }
  return path;
}

bool IsSharedByNodes(absl::string_view pattern) {
  OutputPatternFields first;
  first.host = "a";
  OutputPatternFields second;
  second.host = "b";
  second.node = second.rank = 1;
  return ExpandOutputPattern(pattern, first) == ExpandOutputPattern(pattern, second);
}

}  // namespace cadre
