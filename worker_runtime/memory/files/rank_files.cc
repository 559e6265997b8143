#include "worker_runtime/memory/files/rank_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace cadre::memory {
namespace {

constexpr absl::string_view kOwn = "rank-";
constexpr absl::string_view kCopy = "copy-";

// By name; nullopt: none of ours.
std::optional<RankFile> Parse(const std::filesystem::path& path) {
  const std::string whole_name = path.filename().string();
  absl::string_view name = whole_name;
  RankFile file;
  file.is_copy = absl::ConsumePrefix(&name, kCopy);
  if (!file.is_copy && !absl::ConsumePrefix(&name, kOwn)) return std::nullopt;
  const size_t dot = name.find('.');
  int slot = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &file.rank) ||
      !absl::SimpleAtoi(name.substr(dot + 1), &slot)) {
    return std::nullopt;
  }
  file.path = path.string();
  return file;
}

std::vector<RankFile> Files(const std::string& directory) {
  std::vector<RankFile> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (std::optional<RankFile> file = Parse(entry->path())) files.push_back(*std::move(file));
  }
  std::sort(files.begin(), files.end(),
            [](const RankFile& a, const RankFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::string OwnName(int rank) { return absl::StrCat(kOwn, rank); }
std::string CopyName(int rank) { return absl::StrCat(kCopy, rank); }

std::vector<RankFile> RankFiles(const std::string& directory) {
  std::vector<RankFile> whole;
  for (RankFile& file : Files(directory)) {
    const std::optional<SlotLabel> label = ReadLabel(file.path);
    if (!label.has_value()) continue;
    file.label = *label;
    whole.push_back(std::move(file));
  }
  return whole;
}

absl::Status GoBack(const std::string& directory, int64_t step, uint64_t generation) {
  for (const RankFile& file : RankFiles(directory)) {
    const bool same_step = file.label.step == step;
    if (file.label.step > step || (same_step && file.label.generation != generation)) {
      RETURN_IF_ERROR(EraseLabel(file.path));
    }
  }
  return absl::OkStatus();
}

void RemoveOthers(const std::string& directory,
                  const std::function<bool(int rank, bool is_copy)>& stays) {
  for (const RankFile& file : Files(directory)) {
    std::error_code ignored;
    if (!stays(file.rank, file.is_copy)) std::filesystem::remove(file.path, ignored);
  }
}

}  // namespace cadre::memory
