#include "rendezvous/web/dashboard/log_files.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log_paths.h"
#include "base/status_macros.h"

namespace cadre::web {
namespace {

namespace fs = std::filesystem;

constexpr size_t kJobNameMax = 63;

// The numbers N of the directories `prefix`N in `path`, largest first.
std::set<uint64_t, std::greater<uint64_t>> Numbered(const fs::path& path,
                                                    absl::string_view prefix) {
  std::set<uint64_t, std::greater<uint64_t>> numbers;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename().string();
    absl::string_view name = file;
    uint64_t number = 0;
    if (absl::ConsumePrefix(&name, prefix) && absl::SimpleAtoi(name, &number)) {
      numbers.insert(number);
    }
  }
  return numbers;
}

bool IsNumbered(absl::string_view name, absl::string_view prefix) {
  uint64_t number = 0;
  return absl::ConsumePrefix(&name, prefix) && absl::SimpleAtoi(name, &number);
}

// Where a process that began elsewhere goes on writing, as its agent links it; empty: this is no
// such link.
std::string LinkedTo(const fs::path& directory) {
  std::error_code error;
  const std::string target = fs::read_symlink(directory, error).string();
  absl::string_view rest = target;
  if (error || !absl::ConsumePrefix(&rest, "../")) return "";
  const std::vector<absl::string_view> names = absl::StrSplit(rest, '/');
  const bool known = names.size() == 2 && IsNumbered(names[0], kGenerationPrefix) &&
                     (IsNumbered(names[1], kRankPrefix) || IsNumbered(names[1], kStandbyPrefix));
  return known ? std::string(rest) : "";
}

// The run that `generation`, a directory's name, is a link into, as agents make it for the newest
// one; empty: it is no such link.
std::string LinkedRun(const fs::path& job, const std::string& generation) {
  std::error_code error;
  const std::string target = fs::read_symlink(job / generation, error).string();
  absl::string_view run = target;
  if (error || !absl::ConsumePrefix(&run, kRunPrefix) ||
      !absl::ConsumeSuffix(&run, absl::StrCat("/", generation)) ||
      !std::all_of(run.begin(), run.end(),
                   [](char c) { return absl::ascii_isalnum(c) || c == '.'; })) {
    return "";
  }
  return std::string(run);
}

std::string GenerationJson(uint64_t generation, std::vector<uint64_t> ranks) {
  if (ranks.size() > kListedRanks) ranks.resize(kListedRanks);
  return absl::StrCat("{\"generation\":", generation, ",\"ranks\":[", absl::StrJoin(ranks, ","),
                      "]}");
}

}  // namespace

bool IsJobName(const std::string& name) {
  if (name.empty() || name.size() > kJobNameMax || name[0] == '-') return false;
  for (const char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') return false;
  }
  return true;
}

std::string LogListJson(const std::string& log_dir, const std::string& job,
                        const std::string& run) {
  std::vector<std::string> generations;
  const fs::path root = fs::path(log_dir) / RunSubdirectory(job, run);
  for (const uint64_t generation : Numbered(root, kGenerationPrefix)) {
    if (generations.size() >= kListedGenerations) break;
    const auto found = Numbered(root / GenerationSubdirectory(generation), kRankPrefix);
    generations.push_back(GenerationJson(generation, {found.rbegin(), found.rend()}));
  }
  return absl::StrCat("{\"generations\":[", absl::StrJoin(generations, ","), "]}");
}

std::string LogListJson(const v1::JobStatus& job) {
  std::vector<std::string> generations;
  const auto& all = job.timeline().generations();
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (generations.size() >= kListedGenerations) break;
    std::vector<uint64_t> ranks(std::min<size_t>(one->world_size(), kListedRanks));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (!ranks.empty()) generations.push_back(GenerationJson(one->generation(), std::move(ranks)));
  }
  return absl::StrCat("{\"generations\":[", absl::StrJoin(generations, ","), "]}");
}

absl::StatusOr<v1::ReadLogRequest> ParseLogQuery(const std::string& job,
                                                 const std::map<std::string, std::string>& query) {
  uint64_t generation = 0;
  uint32_t rank = 0;
  const auto number = [&](const char* name, auto* value) {
    const auto found = query.find(name);
    return found != query.end() && absl::SimpleAtoi(found->second, value);
  };
  if (!number("generation", &generation)) {
    return absl::InvalidArgumentError("generation= is expected, with a number");
  }
  if (!number("rank", &rank)) {
    return absl::InvalidArgumentError("rank= is expected, with a number");
  }
  const auto stream = query.find("stream");
  if (stream == query.end() || (stream->second != "stdout" && stream->second != "stderr")) {
    return absl::InvalidArgumentError("stream=stdout or stream=stderr is expected");
  }
  v1::ReadLogRequest request;
  request.set_job(job);
  request.set_generation(generation);
  request.set_rank(rank);
  request.set_standard_error(stream->second == "stderr");
  return request;
}

absl::StatusOr<std::string> LogPath(const std::string& log_dir, const std::string& job,
                                    const std::string& run,
                                    const std::map<std::string, std::string>& query) {
  ASSIGN_OR_RETURN(const v1::ReadLogRequest request, ParseLogQuery(job, query));
  const std::string generation = GenerationSubdirectory(request.generation());
  const std::string root =
      RunSubdirectory(job, run.empty() ? LinkedRun(fs::path(log_dir) / job, generation) : run);
  const std::string asked = RankSubdirectory(request.generation(), request.rank());
  const std::string linked = LinkedTo(fs::path(log_dir) / root / asked);
  return absl::StrCat(root, "/", linked.empty() ? asked : linked,
                      request.standard_error() ? "/stderr.log" : "/stdout.log");
}

}  // namespace cadre::web
