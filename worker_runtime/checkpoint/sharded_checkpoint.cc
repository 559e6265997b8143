#include "cadre/sharded_checkpoint.h"

#include <filesystem>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/checkpoint_directory.h"
#include "worker_runtime/checkpoint/copy_parts.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/state_index.h"
#include "worker_runtime/checkpoint/store_round.h"

namespace cadre {
namespace {

using checkpoint::StateIndex;
using checkpoint::StoreRound;

// Rank 0's verdicts on a checkpoint. The second is followed by a warning.
constexpr char kNextOne[] = "next";
constexpr char kThisOne[] = "this\n";

Status Prefixed(absl::string_view prefix, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), absl::StrCat(prefix, status.message()));
}

class DirectoryShards : public ShardedCheckpoint {
 public:
  DirectoryShards(Worker& worker, const std::string& directory,
                  const ShardedCheckpointOptions& options, int64_t number)
      : worker_(worker),
        options_(options),
        directory_(directory, options.keep),
        prefix_(absl::StrCat("shards/", number)) {}
  ~DirectoryShards() override { Join(); }

  Status Save(int64_t step, const ShardedState& state) override;
  Status Wait() override {
    Join();
    return std::exchange(written_, OkStatus());
  }
  Result<std::optional<LatestShards>> Latest(MemoryCheckpoint* memory) override;

 private:
  void Join() {
    if (writing_.joinable()) writing_.join();
  }
  StoreRound NextRound() {
    return StoreRound(worker_, prefix_, ++rounds_, MonoNow() + options_.timeout);
  }
  std::string FolderOf(absl::string_view name) const {
    return absl::StrCat(directory_.directory(), "/", name);
  }

  // Copies this rank's state; the copy is then written.
  Status Copy(int64_t step, const ShardedState& state);
  Status WriteAsRankZero(StoreRound& round, int64_t step);
  Status WriteAsOtherRank(StoreRound& round);
  // Has all ranks write their parts to the folder of `path`, then writes the index of them to
  // `path`.
  Status WriteAllParts(StoreRound& round, const std::string& path);
  // Writes this rank's copy. Returns the error if there is no copy.
  Status WritePart(const std::string& folder);

  // Finds the newest checkpoint on disk that all ranks find complete.
  Result<std::optional<LatestShards>> Newest();
  // Rank 0 only: returns the name of the next candidate that it can open; empty if there is none.
  Result<std::string> Choose(std::vector<Checkpoint>* candidates, std::string* warning) const;
  // Checks this rank's share of the parts.
  Status CheckShare(const std::string& folder, std::optional<SavedShards>* shards) const;
  // Rank 0 only: returns its verdict on the ranks' findings (the next checkpoint, or this one with
  // a warning), or an error.
  static Result<std::string> Judge(const std::vector<Status>& found, std::string* warning);

  Worker& worker_;
  const ShardedCheckpointOptions options_;
  const CheckpointDirectory directory_;
  const std::string prefix_;
  int64_t rounds_ = 0;

  // Whether the copy could be made.
  Status copied_;
  // Describes the copied ranges.
  StateIndex index_;
  // The copied data.
  std::unique_ptr<char[]> copy_;
  size_t capacity_ = 0;
  size_t copied_bytes_ = 0;
  std::thread writing_;
  Status written_;
};

Status DirectoryShards::Copy(int64_t step, const ShardedState& state) {
  if (state.rank() != worker_.rank() || state.ranks() != worker_.world_size()) {
    return InvalidArgumentError(absl::StrCat("the state is one of rank ", state.rank(), " of ",
                                             state.ranks(), ", and this is rank ", worker_.rank(),
                                             " of ", worker_.world_size()));
  }
  ASSIGN_OR_RETURN(checkpoint::StatePieces pieces,
                   checkpoint::PiecesOf(state, step, /*all=*/false));
  index_ = std::move(pieces.index);
  copied_bytes_ = index_.parts[0].data_bytes;
  if (capacity_ < copied_bytes_) {
    capacity_ = 0;
    copy_.reset();  // frees the old copy before allocating
    copy_.reset(new (std::nothrow) char[copied_bytes_]);
    if (copy_ == nullptr) {
      return ResourceExhaustedError(
          absl::StrCat("there is no memory for a copy of ", copied_bytes_, " bytes"));
    }
    capacity_ = copied_bytes_;
  }
  const int copiers = checkpoint::CopiersFor(copied_bytes_, worker_.place().local_world_size);
  checkpoint::CopyParts(pieces.data, copy_.get(), copiers);
  return OkStatus();
}

Status DirectoryShards::Save(int64_t step, const ShardedState& state) {
  const Status before = Wait();
  copied_ = Copy(step, state);
  auto write = [this, round = NextRound(), step]() mutable {
    written_ = worker_.rank() == 0 ? WriteAsRankZero(round, step) : WriteAsOtherRank(round);
  };
  try {
    writing_ = std::thread(write);
  } catch (const std::system_error&) {
    write();  // no thread could be started
  }
  return before;
}

Status DirectoryShards::WritePart(const std::string& folder) {
  RETURN_IF_ERROR(copied_);
  const absl::string_view data(copy_.get(), copied_bytes_);
  checkpoint::AddChecksums(index_, data);
  const std::string path = absl::StrCat(folder, "/", checkpoint::PartName(worker_.rank()));
  RETURN_IF_ERROR(checkpoint::WriteAndSync(path, {checkpoint::EncodeIndex(index_), data}));
  return checkpoint::Sync(folder);
}

Status DirectoryShards::WriteAllParts(StoreRound& round, const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const std::string name = std::filesystem::path(folder).filename().string();
  RETURN_IF_ERROR(round.Order(name));
  Status status = Prefixed("rank 0: ", WritePart(folder));
  // Reports are collected also after an error: no rank may write to a folder that is being removed.
  ASSIGN_OR_RETURN(const std::vector<Status> reports, round.Collect());
  for (const Status& report : reports) status.Update(report);
  RETURN_IF_ERROR(status);
  std::vector<StateIndex> heads;
  for (int rank = 0; rank < worker_.world_size(); ++rank) {
    Result<StateIndex> head = checkpoint::ReadHead(folder, rank);
    if (!head.ok()) {
      return Prefixed(absl::StrCat("rank 0 cannot read the part of the checkpoint that rank ", rank,
                                   " wrote; all nodes must share ", directory_.directory(), ": "),
                      head.status());
    }
    heads.push_back(*std::move(head));
  }
  ASSIGN_OR_RETURN(const StateIndex index, checkpoint::MergeHeads(std::move(heads)));
  return checkpoint::WriteAndSync(path, checkpoint::EncodeIndex(index));
}

Status DirectoryShards::WriteAsRankZero(StoreRound& round, int64_t step) {
  bool ordered = false;
  const auto writer = [&](const std::string& path) {
    ordered = true;
    return WriteAllParts(round, path);
  };
  // The store refuses calls of a generation that has ended.
  const auto fence = [&] { return worker_.Set("checkpoint/step", absl::StrCat(step)); };
  const Status status = directory_.Save(step, worker_.place().generation, writer, fence);
  const Result<std::string> outcome =
      status.ok() ? Result<std::string>(std::string()) : Result<std::string>(status);
  // If this fails, the other ranks notice when their deadline passes.
  if (!ordered) round.Order(outcome).IgnoreError();
  round.Conclude(outcome).IgnoreError();
  return status;
}

Status DirectoryShards::WriteAsOtherRank(StoreRound& round) {
  ASSIGN_OR_RETURN(const std::string name, round.AwaitOrder());
  RETURN_IF_ERROR(round.Report(WritePart(FolderOf(name))));
  return round.AwaitOutcome().status();
}

Result<std::optional<LatestShards>> DirectoryShards::Latest(MemoryCheckpoint* memory) {
  Join();
  if (memory != nullptr) {
    ASSIGN_OR_RETURN(const std::optional<SavedState> saved, memory->Latest());
    if (saved.has_value()) {
      ASSIGN_OR_RETURN(SavedShards shards, SavedShards::FromMemory(saved->bytes));
      return std::optional<LatestShards>(LatestShards{std::move(shards), ""});
    }
  }
  return Newest();
}

Result<std::string> DirectoryShards::Choose(std::vector<Checkpoint>* candidates,
                                            std::string* warning) const {
  ASSIGN_OR_RETURN(const std::optional<Checkpoint> next, directory_.NextWhole(candidates, warning));
  if (!next.has_value()) return std::string();
  return CheckpointDirectory::Name(next->step, next->generation);
}

Status DirectoryShards::CheckShare(const std::string& folder,
                                   std::optional<SavedShards>* shards) const {
  Result<SavedShards> found = SavedShards::FromFolder(folder);
  if (found.status().code() == StatusCode::kNotFound) {
    return NotFoundError(
        absl::StrCat(found.status().message(), "; all nodes must share ", directory_.directory()));
  }
  RETURN_IF_ERROR(found.status());
  shards->emplace(*std::move(found));
  for (int part = worker_.rank(); part < (*shards)->ranks(); part += worker_.world_size()) {
    RETURN_IF_ERROR((*shards)->Check(part));
  }
  return OkStatus();
}

Result<std::string> DirectoryShards::Judge(const std::vector<Status>& found, std::string* warning) {
  bool damaged = false;
  for (const Status& status : found) {
    if (status.ok()) continue;
    if (status.code() != StatusCode::kDataLoss) return status;
    absl::StrAppend(warning, warning->empty() ? "" : "; ", status.message());
    damaged = true;
  }
  if (damaged) return std::string(kNextOne);
  return absl::StrCat(kThisOne, *warning);
}

Result<std::optional<LatestShards>> DirectoryShards::Newest() {
  std::string warning;
  Result<std::vector<Checkpoint>> candidates = std::vector<Checkpoint>();
  if (worker_.rank() == 0) candidates = directory_.Candidates(&warning);
  while (true) {
    StoreRound round = NextRound();
    Result<std::string> name, verdict;
    std::optional<SavedShards> shards;
    if (worker_.rank() == 0) {
      name = candidates.ok() ? Choose(&*candidates, &warning)
                             : Result<std::string>(candidates.status());
      RETURN_IF_ERROR(round.Order(name));
      RETURN_IF_ERROR(name.status());
      if (name->empty()) return std::optional<LatestShards>();
      const Status mine = CheckShare(FolderOf(*name), &shards);
      ASSIGN_OR_RETURN(std::vector<Status> found, round.Collect());
      found[0] = Prefixed("rank 0: ", mine);
      verdict = Judge(found, &warning);
      RETURN_IF_ERROR(round.Conclude(verdict));
    } else {
      ASSIGN_OR_RETURN(name, round.AwaitOrder());
      if (name->empty()) return std::optional<LatestShards>();
      RETURN_IF_ERROR(round.Report(CheckShare(FolderOf(*name), &shards)));
      verdict = round.AwaitOutcome();
    }
    RETURN_IF_ERROR(verdict.status());
    if (*verdict == kNextOne) continue;
    if (!shards.has_value())
      return InternalError(
          "rank 0 chose a checkpoint that this rank does not find in the directory");
    std::string said = verdict->substr(sizeof(kThisOne) - 1);
    if (!said.empty()) absl::StrAppend(&said, "; step ", shards->step(), " is used instead");
    return std::optional<LatestShards>(LatestShards{*std::move(shards), std::move(said)});
  }
}

}  // namespace

Result<std::unique_ptr<ShardedCheckpoint>> ShardedCheckpoint::Open(
    Worker& worker, const std::string& directory, const ShardedCheckpointOptions& options) {
  // The number separates this object's rounds in the store from those of one opened before.
  ASSIGN_OR_RETURN(const int64_t number,
                   worker.Add(absl::StrCat("shards/opened/", worker.rank()), 1));
  std::unique_ptr<ShardedCheckpoint> opened =
      std::make_unique<DirectoryShards>(worker, directory, options, number);
  return opened;
}

}  // namespace cadre
