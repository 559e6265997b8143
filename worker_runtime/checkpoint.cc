// Checkpoints that all ranks save and load together, and the directory that stores them.
#include "cadre/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/checkpoint_directory.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/store_round.h"

namespace cadre {
namespace {

// Runs `task` on rank 0 and gives all ranks its outcome. Each rank counts its calls, so that none
// reads an earlier call's outcome; the last rank to finish deletes it from the store.
Result<std::string> OnRankZero(Worker& worker, absl::string_view what,
                               std::chrono::nanoseconds timeout,
                               const std::function<Result<std::string>()>& task) {
  const MonoTime deadline = MonoNow() + timeout;
  const std::string prefix = absl::StrCat("checkpoint/", what);
  ASSIGN_OR_RETURN(const int64_t call,
                   worker.Add(absl::StrCat(prefix, "/calls/", worker.rank()), 1));
  const std::string key = absl::StrCat(prefix, "/", call);
  Result<std::string> outcome;
  if (worker.rank() == 0) {
    outcome = task();
    RETURN_IF_ERROR(worker.Set(key, checkpoint::EncodeOutcome(outcome)));
  } else {
    const Result<std::string> encoded = worker.Get(key, timeout);
    if (encoded.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceededError(absl::StrCat("rank 0 did not finish call ", call, " of ", prefix,
                                                " in time; rank ", worker.rank(),
                                                " waited for it"));
    }
    RETURN_IF_ERROR(encoded.status());
    outcome = checkpoint::DecodeOutcome(*encoded, "rank 0: ");
  }
  RETURN_IF_ERROR(worker.Barrier(prefix, absl::ToChronoNanoseconds(deadline - MonoNow())));
  if (worker.rank() == 0) RETURN_IF_ERROR(worker.Delete(key));
  return outcome;
}

}  // namespace

Status SaveCheckpoint(Worker& worker, const CheckpointDirectory& directory, int64_t step,
                      const CheckpointDirectory::Writer& writer, std::chrono::nanoseconds timeout) {
  const auto save = [&]() -> Result<std::string> {
    // The store rejects this call if the generation is over.
    const auto fence = [&] { return worker.Set("checkpoint/step", absl::StrCat(step)); };
    RETURN_IF_ERROR(directory.Save(step, worker.place().generation, writer, fence));
    return absl::StrCat(step);
  };
  ASSIGN_OR_RETURN(const std::string saved, OnRankZero(worker, "save", timeout, save));
  if (saved == absl::StrCat(step)) return OkStatus();
  return InvalidArgumentError(absl::StrCat("rank 0 saved step ", saved, " and rank ", worker.rank(),
                                           " is in step ", step,
                                           "; all ranks must save after the same step"));
}

Result<bool> CheckpointWanted(Worker& worker, std::chrono::nanoseconds timeout) {
  constexpr absl::string_view kYes = "yes";
  ASSIGN_OR_RETURN(const std::string answer,
                   OnRankZero(worker, "wanted", timeout, [&]() -> Result<std::string> {
                     return std::string(worker.MoreNodesWait() ? kYes : "no");
                   }));
  return answer == kYes;
}

Result<NewestCheckpoint> LoadNewest(Worker& worker, const CheckpointDirectory& directory,
                                    std::chrono::nanoseconds timeout) {
  ASSIGN_OR_RETURN(const std::string announced,
                   OnRankZero(worker, "load", timeout, [&]() -> Result<std::string> {
                     ASSIGN_OR_RETURN(const NewestCheckpoint newest, directory.FindNewest());
                     if (!newest.checkpoint.has_value()) return std::string("\n");
                     const Checkpoint& found = *newest.checkpoint;
                     return absl::StrCat(CheckpointDirectory::Name(found.step, found.generation),
                                         "\n", newest.warning);
                   }));
  const std::vector<std::string> parts = absl::StrSplit(announced, absl::MaxSplits('\n', 1));
  NewestCheckpoint newest;
  if (parts[0].empty()) return newest;
  newest.warning = parts.size() > 1 ? parts[1] : "";
  Result<Checkpoint> checkpoint = directory.Check(parts[0], /*read_data=*/false);
  if (!checkpoint.ok()) {
    return Status(
        checkpoint.status().code(),
        absl::StrCat("rank ", worker.rank(), " cannot read the checkpoint that rank 0 chose: ",
                     checkpoint.status().message(), "; all nodes must share ",
                     directory.directory()));
  }
  newest.checkpoint = *std::move(checkpoint);
  return newest;
}

namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "LATEST";
constexpr char kData[] = "data";
constexpr char kManifest[] = "manifest";
constexpr char kTemporaryPrefix[] = ".tmp_g";
// The most bytes of LATEST and of a manifest.
constexpr size_t kMaxTextBytes = 4096;

// The first line of a manifest; another format gets another number.
constexpr char kManifestHeader[] = "cadre checkpoint 1";

std::string ManifestText(int64_t step, const checkpoint::FileSum& sum) {
  return absl::StrFormat("%s\nstep %d\nbytes %d\ncrc32c %08x\nend\n", kManifestHeader, step,
                         sum.bytes, sum.crc32c);
}

// The checkpoint's step and generation by its directory's name.
std::optional<Checkpoint> ParseName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "step_")) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(name, "_g");
  Checkpoint checkpoint;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &checkpoint.step) ||
      !absl::SimpleAtoi(parts[1], &checkpoint.generation) || checkpoint.step < 0) {
    return std::nullopt;
  }
  return checkpoint;
}

// Names in the directory; none when it does not exist.
Result<std::vector<std::string>> List(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return ErrnoToStatus(error.value(), absl::StrCat("cannot list ", directory));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The generation whose unfinished work has this name; nullopt for other names.
std::optional<uint64_t> TemporaryGeneration(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kTemporaryPrefix)) return std::nullopt;
  uint64_t generation = 0;
  if (!absl::SimpleAtoi(name.substr(0, name.find('_')), &generation)) return std::nullopt;
  return generation;
}

Status CheckNamed(const std::string& directory) {
  if (!directory.empty()) return OkStatus();
  return InvalidArgumentError(
      "the checkpoint directory has an empty name; name a directory that all nodes see");
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string directory, int keep)
    : directory_(std::move(directory)), keep_(std::max(keep, 2)) {}

std::string CheckpointDirectory::Name(int64_t step, uint64_t generation) {
  return absl::StrCat("step_", step, "_g", generation);
}

std::string CheckpointDirectory::Path(std::string_view name) const {
  return absl::StrCat(directory_, "/", ToAbsl(name));
}

std::string CheckpointDirectory::TemporaryPath(uint64_t generation, std::string_view name) const {
  return Path(absl::StrCat(kTemporaryPrefix, generation, "_", ToAbsl(name)));
}

Status CheckpointDirectory::Save(int64_t step, uint64_t generation, const Writer& writer,
                                 const Fence& fence) const {
  if (step < 0) return InvalidArgumentError(absl::StrCat("step ", step, " is negative"));
  RETURN_IF_ERROR(Prepare(generation));
  const std::string name = Name(step, generation);
  const std::string temporary = TemporaryPath(generation, name);
  Status status = Write(temporary, step, writer);
  if (status.ok()) status = Commit(temporary, name, generation, fence);
  if (!status.ok()) {
    checkpoint::RemoveTree(temporary).IgnoreError();
    return Status(status.code(), absl::StrCat("checkpoint of step ", step, ": ", status.message()));
  }
  RemoveOld({step, generation, ""});
  return OkStatus();
}

// An empty name would mean the root directory.
Status CheckpointDirectory::Prepare(uint64_t generation) const {
  RETURN_IF_ERROR(CheckNamed(directory_));
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) {
    return ErrnoToStatus(error.value(),
                         absl::StrCat("cannot make the checkpoint directory ", directory_));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, List(directory_));
  for (const std::string& name : names) {
    const std::optional<uint64_t> owner = TemporaryGeneration(name);
    // A later generation's is being written right now; the fence will tell this generation that it
    // is over.
    if (owner.has_value() && *owner <= generation)
      RETURN_IF_ERROR(checkpoint::RemoveTree(Path(name)));
  }
  return OkStatus();
}

Status CheckpointDirectory::Write(const std::string& temporary, int64_t step,
                                  const Writer& writer) const {
  std::error_code error;
  if (!fs::create_directory(temporary, error)) {
    return ErrnoToStatus(error.value(), absl::StrCat("cannot make ", temporary));
  }
  const std::string data = absl::StrCat(temporary, "/", kData);
  RETURN_IF_ERROR(writer(data));
  RETURN_IF_ERROR(checkpoint::Sync(data));
  ASSIGN_OR_RETURN(const checkpoint::FileSum sum, checkpoint::SumFile(data));
  RETURN_IF_ERROR(
      checkpoint::WriteAndSync(absl::StrCat(temporary, "/", kManifest), ManifestText(step, sum)));
  return checkpoint::Sync(temporary);
}

Status CheckpointDirectory::Commit(const std::string& temporary, const std::string& name,
                                   uint64_t generation, const Fence& fence) const {
  const std::string latest = TemporaryPath(generation, kLatest);
  RETURN_IF_ERROR(checkpoint::WriteAndSync(latest, absl::StrCat(name, "\n")));
  RETURN_IF_ERROR(fence());
  if (fs::exists(Path(name))) {
    // A directory cannot be renamed over one that is not empty.
    const std::string replaced = TemporaryPath(generation, absl::StrCat("replaced_", name));
    RETURN_IF_ERROR(checkpoint::Rename(Path(name), replaced));
  }
  RETURN_IF_ERROR(checkpoint::Rename(temporary, Path(name)));
  RETURN_IF_ERROR(checkpoint::Sync(directory_));
  RETURN_IF_ERROR(checkpoint::Rename(latest, Path(kLatest)));
  return checkpoint::Sync(directory_);
}

void CheckpointDirectory::RemoveOld(const Checkpoint& newest) const {
  const Result<std::vector<std::string>> names = List(directory_);
  if (!names.ok()) return;
  std::vector<std::pair<int64_t, std::string>> older;
  for (const std::string& name : *names) {
    const std::optional<Checkpoint> found = ParseName(name);
    const bool replaced =
        absl::StrContains(name, "replaced_") && TemporaryGeneration(name) == newest.generation;
    const bool same_step =
        found.has_value() && found->step == newest.step && found->generation < newest.generation;
    if (replaced || same_step) checkpoint::RemoveTree(Path(name)).IgnoreError();
    if (found.has_value() && found->step < newest.step) older.emplace_back(found->step, name);
  }
  // Checkpoints of later steps belong to a run that was rolled back; their owner deletes them.
  std::sort(older.rbegin(), older.rend());
  for (size_t i = static_cast<size_t>(keep_) - 1; i < older.size(); ++i) {
    // If a checkpoint cannot be removed now, the next save tries again.
    checkpoint::RemoveTree(Path(older[i].second)).IgnoreError();
  }
}

Result<std::vector<Checkpoint>> CheckpointDirectory::Candidates(std::string* warning) const {
  RETURN_IF_ERROR(CheckNamed(directory_));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, List(directory_));
  std::vector<Checkpoint> found;
  for (const std::string& name : names) {
    std::optional<Checkpoint> checkpoint = ParseName(name);
    if (!checkpoint.has_value()) continue;
    checkpoint->path = absl::StrCat(Path(name), "/", kData);
    found.push_back(*std::move(checkpoint));
  }
  const Result<std::string> latest = checkpoint::ReadSmallFile(Path(kLatest), kMaxTextBytes);
  const std::optional<Checkpoint> first =
      latest.ok() ? ParseName(absl::StripAsciiWhitespace(*latest)) : std::nullopt;
  if (latest.ok() && !first.has_value()) *warning = absl::StrCat(Path(kLatest), " is damaged");
  // LATEST's is followed by older ones, and only then by those of a run that was rolled back.
  std::sort(found.begin(), found.end(), [&first](const Checkpoint& a, const Checkpoint& b) {
    const auto rank = [&first](const Checkpoint& c) {
      const bool is_first =
          first.has_value() && c.step == first->step && c.generation == first->generation;
      const bool is_later = first.has_value() && c.step > first->step;
      return std::make_tuple(is_first, !is_later, c.step, c.generation);
    };
    return rank(a) > rank(b);
  });
  if (first.has_value() &&
      (found.empty() || found[0].step != first->step || found[0].generation != first->generation)) {
    *warning = absl::StrCat(Path(kLatest), " names ", Name(first->step, first->generation),
                            ", which is not there");
  }
  return found;
}

Result<Checkpoint> CheckpointDirectory::Check(const std::string& name, bool read_data) const {
  std::optional<Checkpoint> checkpoint = ParseName(name);
  std::error_code error;
  if (!checkpoint.has_value() || !fs::is_directory(Path(name), error)) {
    return NotFoundError(absl::StrCat("no checkpoint ", name, " in ", directory_));
  }
  checkpoint->path = absl::StrCat(Path(name), "/", kData);
  const auto damaged = [&name](const auto&... what) {
    return DataLossError(absl::StrCat("checkpoint ", name, " is damaged: ", what...));
  };
  const auto text =
      checkpoint::ReadSmallFile(absl::StrCat(Path(name), "/", kManifest), kMaxTextBytes);
  if (!text.ok()) return damaged(text.status().message());
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  uint64_t bytes = 0;
  if (lines.size() != 6 || !absl::StartsWith(lines[2], "bytes ") ||
      !absl::SimpleAtoi(lines[2].substr(6), &bytes)) {
    return damaged("its manifest is incomplete");
  }
  checkpoint::FileSum sum{bytes, 0};
  if (read_data) {
    const Result<checkpoint::FileSum> read = checkpoint::SumFile(checkpoint->path);
    if (!read.ok()) return damaged(read.status().message());
    sum = *read;
  } else {
    const uint64_t size = fs::file_size(checkpoint->path, error);
    if (error) return damaged("its data cannot be read: ", error.message());
    sum.bytes = size;
  }
  if (sum.bytes != bytes) {
    return damaged("its data has ", sum.bytes, " bytes and should have ", bytes);
  }
  if (read_data && *text != ManifestText(checkpoint->step, sum)) {
    return damaged("its data is not what was written (the checksum differs)");
  }
  return *std::move(checkpoint);
}

Result<std::optional<Checkpoint>> CheckpointDirectory::NextWhole(
    std::vector<Checkpoint>* candidates, std::string* warning) const {
  while (!candidates->empty()) {
    const Checkpoint& first = candidates->front();
    Result<Checkpoint> checked = Check(Name(first.step, first.generation), /*read_data=*/true);
    candidates->erase(candidates->begin());
    if (checked.ok()) return std::optional<Checkpoint>(*std::move(checked));
    absl::StrAppend(warning, warning->empty() ? "" : "; ", checked.status().message());
  }
  if (warning->empty()) return std::optional<Checkpoint>();
  return DataLossError(absl::StrCat(*warning, "; no complete checkpoint is left in ", directory_,
                                    ": remove what is damaged to start from the beginning"));
}

Result<NewestCheckpoint> CheckpointDirectory::FindNewest() const {
  NewestCheckpoint newest;
  ASSIGN_OR_RETURN(std::vector<Checkpoint> candidates, Candidates(&newest.warning));
  ASSIGN_OR_RETURN(newest.checkpoint, NextWhole(&candidates, &newest.warning));
  if (newest.checkpoint.has_value() && !newest.warning.empty()) {
    absl::StrAppend(&newest.warning, "; step ", newest.checkpoint->step, " is used instead");
  }
  return newest;
}

}  // namespace cadre
