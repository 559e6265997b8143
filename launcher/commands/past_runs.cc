#include "launcher/commands/past_runs.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/civil_time.h"
#include "agent/run_files.h"
#include "base/log_paths.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/user_directory.h"
#include "google/protobuf/util/json_util.h"
#include "launcher/display/output_format.h"
#include "launcher/display/timeline_text.h"
#include "launcher/spec/text_file.h"
#include "proto/job.pb.h"
#include "rpc/job_progress.h"

namespace cadre::launcher {
namespace {

namespace fs = std::filesystem;

// Enough for a large job's timeline.
constexpr size_t kMaxJsonBytes = size_t{256} << 20;
constexpr size_t kMaxListBytes = 64 << 10;
constexpr size_t kChunkBytes = 64 << 10;
// The length of the reason why a run ended.
constexpr size_t kWhyBytes = 100;

std::string DirectoryOf(const PastRun& run) {
  return absl::StrCat(run.log_dir, "/", RunSubdirectory(run.job, run.run));
}

absl::Status BrokenFileError(const std::string& path, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat(path, " is damaged, or 'cadre run' did not write it: ", why));
}

absl::Status ReadJson(const std::string& path, google::protobuf::Message* message) {
  ASSIGN_OR_RETURN(const ScopedFd file, OpenFileToRead(path));
  ASSIGN_OR_RETURN(const std::string content, ReadTextFrom(file.get(), path, kMaxJsonBytes));
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(content, message, options);
  if (parsed.ok()) return absl::OkStatus();
  // The message continues with lines of the file.
  const std::string text(parsed.message());
  return BrokenFileError(path, absl::string_view(text).substr(0, text.find('\n')));
}

absl::StatusOr<std::string> ListPath() {
  ASSIGN_OR_RETURN(const std::string home, HomeDirectory());
  return home + "/log_directories";
}

std::vector<std::string> RememberedDirectories(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxListBytes);
  if (!text.ok()) return {};
  return absl::StrSplit(*text, '\n', absl::SkipEmpty());
}

// `left_out` gets a line if the directory exists and cannot be read.
std::vector<std::string> Subdirectories(const std::string& directory, absl::string_view prefix,
                                        std::vector<std::string>* left_out = nullptr) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::error_code ignored;
    if (absl::StartsWith(name, prefix) && fs::is_directory(entry->path(), ignored)) {
      names.push_back(name);
    }
  }
  const bool absent = error == std::errc::no_such_file_or_directory;
  if (error && !absent && left_out != nullptr) {
    left_out->push_back(absl::StrCat(
        "the runs in ", directory, " are not shown, because it cannot be read: ", error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The numbers of subdirectories like "generation_3", in order.
std::vector<uint64_t> Numbers(const std::string& directory, absl::string_view prefix) {
  std::vector<uint64_t> numbers;
  for (const std::string& name : Subdirectories(directory, prefix)) {
    uint64_t number = 0;
    if (absl::SimpleAtoi(absl::StripPrefix(name, prefix), &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

absl::Time BeganAt(const PastRun& run) {
  // 20261122T011933.123456Z
  int64_t day = 0, clock = 0;
  if (run.run.size() < 15 || run.run[8] != 'T' || !absl::SimpleAtoi(run.run.substr(0, 8), &day) ||
      !absl::SimpleAtoi(run.run.substr(9, 6), &clock)) {
    return absl::InfinitePast();
  }
  return absl::FromCivil(absl::CivilSecond(day / 10000, day / 100 % 100, day % 100, clock / 10000,
                                           clock / 100 % 100, clock % 100),
                         absl::UTCTimeZone());
}

void FillGenerations(const std::string& directory, v1::JobStatus* status) {
  for (const uint64_t number : Numbers(directory, kGenerationPrefix)) {
    v1::GenerationTimeline* generation = status->mutable_timeline()->add_generations();
    generation->set_generation(number);
    const auto ranks =
        Numbers(absl::StrCat(directory, "/", GenerationSubdirectory(number)), kRankPrefix);
    generation->set_world_size(ranks.empty() ? 0 : static_cast<uint32_t>(ranks.back() + 1));
  }
}

}  // namespace

void RememberLogDirectory(const std::string& log_dir) {
  const absl::StatusOr<std::string> path = ListPath();
  if (!path.ok() || HasControlCharacters(log_dir)) return;
  std::vector<std::string> all = RememberedDirectories(*path);
  if (!all.empty() && all[0] == log_dir) return;
  all.erase(std::remove(all.begin(), all.end(), log_dir), all.end());
  all.insert(all.begin(), log_dir);
  if (all.size() > kRememberedDirectories) all.resize(kRememberedDirectories);
  std::string text;
  for (const std::string& one : all) absl::StrAppend(&text, one, "\n");
  // Atomically, also if two runs begin at once.
  agent::WriteFile(*path, text).IgnoreError();
}

std::vector<std::string> KnownLogDirectories() {
  std::vector<std::string> found;
  std::vector<std::string> all = {fs::absolute("logs").lexically_normal()};
  const absl::StatusOr<std::string> path = ListPath();
  if (path.ok()) {
    for (std::string& one : RememberedDirectories(*path)) all.push_back(std::move(one));
  }
  for (const std::string& one : all) {
    std::error_code error;
    if (fs::is_directory(one, error) && std::find(found.begin(), found.end(), one) == found.end()) {
      found.push_back(one);
    }
  }
  return found;
}

std::vector<PastRun> RunsIn(const std::string& log_dir, const std::string& job,
                            std::vector<std::string>* left_out) {
  std::vector<PastRun> runs;
  if (job.empty()) {
    for (const std::string& name : Subdirectories(log_dir, "", left_out)) {
      for (PastRun& run : RunsIn(log_dir, name, left_out)) runs.push_back(std::move(run));
    }
    return runs;
  }
  const std::string directory = absl::StrCat(log_dir, "/", job);
  for (const std::string& name : Subdirectories(directory, kRunPrefix, left_out)) {
    runs.push_back(
        {job, std::string(absl::StripPrefix(name, kRunPrefix)), log_dir, runs.size() + 1});
  }
  std::error_code error;
  if (runs.empty() && fs::exists(directory + "/verdict.json", error)) {
    runs.push_back({job, "", log_dir, 1});
  }
  return runs;
}

void SortNewestFirst(std::vector<PastRun>* runs) {
  std::sort(runs->begin(), runs->end(), [](const PastRun& a, const PastRun& b) {
    // A run's name is its start time.
    return a.run != b.run ? a.run > b.run : a.job < b.job;
  });
}

absl::StatusOr<PastRun> ChooseRun(const std::vector<PastRun>& runs, const std::string& which,
                                  absl::TimeZone zone) {
  if (runs.empty()) return absl::NotFoundError("there is no run");
  if (which.empty()) return runs.back();
  if (which == "previous") {
    if (runs.size() > 1) return runs[runs.size() - 2];
    return absl::NotFoundError(absl::StrCat("job ", runs[0].job, " has had only one run"));
  }
  uint64_t number = 0;
  if (absl::SimpleAtoi(which, &number) && number >= 1 && number <= runs.size()) {
    return runs[number - 1];
  }
  std::string began = which;
  std::replace(began.begin(), began.end(), 'T', ' ');
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    if (absl::StartsWith(run->run, which) || absl::StartsWith(BeganText(*run, zone), began)) {
      return *run;
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "job ", runs[0].job, " has no run '", which, "' in ", runs[0].log_dir, ": it has ",
      Count(runs.size(), "run"), ", the last of which began at ", BeganText(runs.back(), zone),
      "; --run takes a number from 1 on, 'previous', or a start time"));
}

std::string BeganText(const PastRun& run, absl::TimeZone zone) {
  const absl::Time began = BeganAt(run);
  return began == absl::InfinitePast() ? "-" : absl::FormatTime("%Y-%m-%d %H:%M:%S", began, zone);
}

absl::StatusOr<v1::Verdict> ReadVerdict(const std::string& directory) {
  v1::Verdict verdict;
  const std::string path = directory + "/verdict.json";
  const absl::Status read = ReadJson(path, &verdict);
  if (absl::IsNotFound(read)) {
    return absl::NotFoundError(absl::StrCat(
        path, " does not exist: the job has not ended yet, or its launcher was killed"));
  }
  RETURN_IF_ERROR(read);
  if (verdict.outcome() == v1::JOB_PHASE_UNSPECIFIED)
    return BrokenFileError(path, "it has no outcome");
  return verdict;
}

absl::StatusOr<v1::JobStatus> StatusOf(const PastRun& run) {
  v1::JobStatus status;
  status.set_name(run.job);
  status.set_run(run.run);
  const std::string directory = DirectoryOf(run);
  absl::StatusOr<v1::Verdict> verdict = ReadVerdict(directory);
  if (absl::IsNotFound(verdict.status())) {
    const absl::Status history = ReadJson(directory + "/history.json", status.mutable_timeline());
    if (!history.ok() && !absl::IsNotFound(history)) return history;
    if (status.timeline().generations_size() == 0) FillGenerations(directory, &status);
    return status;
  }
  if (!verdict.ok()) return verdict.status();
  *status.mutable_verdict() = *std::move(verdict);
  const absl::Status timeline = ReadJson(directory + "/timeline.json", status.mutable_timeline());
  if (!timeline.ok() && !absl::IsNotFound(timeline)) return timeline;
  if (status.timeline().generations_size() == 0) FillGenerations(directory, &status);
  status.set_phase(status.verdict().outcome());
  status.set_restarts(status.verdict().restarts());
  status.set_generation(status.verdict().generations());
  return status;
}

v1::JobUsage UsageOf(const PastRun& run) {
  v1::JobUsage usage;
  if (!ReadJson(DirectoryOf(run) + "/usage.json", &usage).ok()) return {};
  return usage;
}

std::string LogPathOf(const PastRun& run, const v1::ReadLogRequest& request) {
  return absl::StrCat(DirectoryOf(run), "/", RankSubdirectory(request.generation(), request.rank()),
                      request.standard_error() ? "/stderr.log" : "/stdout.log");
}

absl::StatusOr<v1::ReadLogReply> ReadLogOf(const PastRun& run, const v1::ReadLogRequest& request) {
  const std::string path = LogPathOf(run, request);
  const absl::StatusOr<ScopedFd> opened = OpenFileToRead(path);
  if (absl::IsPermissionDenied(opened.status())) return opened.status();
  struct stat info;
  if (!opened.ok() || fstat(opened->get(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(
        path, " does not exist: the rank ran on another machine, or its output was not kept"));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  v1::ReadLogReply reply;
  reply.set_offset(request.tail() == 0 ? request.offset() : size - std::min(size, request.tail()));
  reply.set_file(absl::StrCat(info.st_dev, ":", info.st_ino));
  std::string bytes(kChunkBytes, '\0');
  const ssize_t got =
      pread(opened->get(), &bytes[0], bytes.size(), static_cast<off_t>(reply.offset()));
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  bytes.resize(static_cast<size_t>(got));
  reply.set_bytes(std::move(bytes));
  reply.set_ended(got == 0);
  return reply;
}

std::string SuspendedText(const PastRun& run) {
  return absl::StrCat("its launcher (process ", run.suspended,
                      ") is suspended; resume it with 'kill -CONT ", run.suspended,
                      "', or with fg in its shell");
}

std::string RunsTable(const std::vector<PastRun>& runs, size_t most, absl::TimeZone zone,
                      std::vector<std::string>* left_out) {
  std::vector<std::vector<std::string>> rows;
  size_t seen = 0;
  for (; seen < runs.size() && rows.size() < most; ++seen) {
    const PastRun& run = runs[seen];
    const absl::StatusOr<v1::JobStatus> status = StatusOf(run);
    if (!status.ok()) {
      left_out->push_back(absl::StrCat("run ", run.number, " of job ", run.job,
                                       " is not shown: ", status.status().message()));
      continue;
    }
    int64_t took = 0;
    for (const v1::GenerationTimeline& one : status->timeline().generations()) {
      took = std::max(took, EndOf(status->timeline(), one));
    }
    const std::string reason = status->has_verdict() || run.suspended == 0
                                   ? status->verdict().message()
                                   : SuspendedText(run);
    rows.push_back({run.job, absl::StrCat(run.number), BeganText(run, zone),
                    status->has_verdict() ? rpc::PhaseName(status->phase())
                    : run.suspended != 0  ? "suspended"
                                          : "no verdict",
                    TookText(0, took), Shortened(EscapeControl(reason), kWhyBytes)});
  }
  if (rows.empty()) return "";
  std::string text = FormatTable({"JOB", "RUN", "BEGAN", "OUTCOME", "TOOK", "REASON"}, rows);
  if (seen < runs.size()) {
    absl::StrAppend(&text, "... and ", runs.size() - seen, " older, --all shows them\n");
  }
  return text;
}

namespace {

// Replaces the file. Does nothing if the run has no directory on this machine.
void WriteJson(const std::string& path, const google::protobuf::Message& message) {
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json).ok()) return;
  agent::WriteFile(path, absl::StrCat(json, "\n")).IgnoreError();
}

v1::JobUsage UsageOf(host::CoreThread& core, const std::string& job) {
  const auto promise = std::make_shared<std::promise<v1::JobUsage>>();
  std::future<v1::JobUsage> answer = promise->get_future();
  core.AskUsage(job, [promise](absl::StatusOr<v1::JobUsage> usage) {
    promise->set_value(usage.ok() ? *std::move(usage) : v1::JobUsage());
  });
  return answer.get();
}

}  // namespace

RunHistory::RunHistory(std::string log_dir, std::string job, Serving serving,
                       absl::Duration interval)
    : log_dir_(std::move(log_dir)), job_(std::move(job)), serving_(std::move(serving)) {
  thread_.emplace(absl::ToChronoNanoseconds(interval), [this] { Write(); });
}

RunHistory::~RunHistory() {
  thread_.reset();
  Write();
  files_.Drain(kDrainLimit);
}

void RunHistory::Write() {
  const auto core = serving_();
  if (!core.ok()) return;
  const absl::StatusOr<v1::JobStatus> status = (*core)->Status(job_);
  if (!status.ok() || status->run().empty()) return;
  files_.Post([directory = agent::RunDirectory(log_dir_, job_, status->run()),
               timeline = status->timeline(), ended = status->has_verdict(),
               usage = UsageOf(**core, job_)] {
    if (usage.nodes_size() > 0) WriteJson(directory + "/usage.json", usage);
    const std::string history = directory + "/history.json";
    if (ended) {
      unlink(history.c_str());
    } else {
      WriteJson(history, timeline);
    }
  });
}

}  // namespace cadre::launcher
