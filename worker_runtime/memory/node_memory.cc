#include "worker_runtime/memory/node_memory.h"

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cadre/connect.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/backend/broadcast_bytes.h"
#include "worker_runtime/checkpoint/copy_parts.h"
#include "worker_runtime/memory/absence_notice.h"
#include "worker_runtime/memory/files/rank_files.h"
#include "worker_runtime/memory/files/slot_file.h"
#include "worker_runtime/memory/spill_directory.h"

namespace cadre::memory {
namespace {

// The names of the states that may be read.
constexpr int64_t kMostOfferedBytes = 1 << 10;
// Of a rank that cannot read its own: a path, and what is wrong there.
constexpr int64_t kMostProblemBytes = 8 << 10;

size_t SizeOf(Span<const StatePart> parts) {
  size_t bytes = 0;
  for (const StatePart& part : parts) bytes += part.size;
  return bytes;
}

// On standard error: a person before a silent program wants to know for whom it waits.
AbsenceNoticeOptions TellAbsence() {
  AbsenceNoticeOptions options;
  options.say = [](const std::string& absent) {
    std::fprintf(stderr,
                 "cadre: latest() of the checkpoint in memory waits: it is not called yet by %s\n",
                 absent.c_str());
  };
  return options;
}

}  // namespace

NodeMemory::NodeMemory(Worker& worker, const MemoryCheckpointOptions& options, Kept kept)
    : worker_(worker), options_(options), kept_(std::move(kept)) {
  slots_.emplace(directory(), kept_.name, kept_.slots);
}

Status NodeMemory::Save(int64_t step, Span<const StatePart> parts) {
  RETURN_IF_ERROR(Wait());
  if (!kept_.writes) return OkStatus();
  // Here and not only in Write(): a rank that trained on while its last step is on its way would
  // let the others write over the one before.
  AwaitRoom();
  const auto copy = [this, step, copied = std::vector<StatePart>(parts.begin(), parts.end())] {
    copied_ = Write(copied);
    if (copied_.ok()) copied_ = Commit(step);
  };
  try {
    copying_ = std::thread(copy);
  } catch (const std::system_error&) {
    copy();  // there is no room for a thread
  }
  return OkStatus();
}

Status NodeMemory::Wait() {
  if (copying_.joinable()) copying_.join();
  Status status = std::exchange(copied_, OkStatus());
  if (spill_ != nullptr) status.Update(spill_->TakeProblem());
  return status;
}

Status NodeMemory::Write(Span<const StatePart> parts) {
  if (!kept_.writes) return OkStatus();
  AwaitRoom();
  const size_t bytes = SizeOf(parts);
  ASSIGN_OR_RETURN(char* const to, slots_->Begin(bytes));
  checkpoint::CopyParts(parts, to, checkpoint::CopiersFor(bytes, worker_.place().local_world_size));
  return OkStatus();
}

Status NodeMemory::CommitToSlots(int64_t step, uint64_t generation) {
  return slots_->Commit(step, generation, worker_.world_size());
}

Status NodeMemory::Commit(int64_t step) {
  if (step < 0) return InvalidArgumentError(absl::StrCat("step ", step, " is below 0"));
  if (!kept_.writes) return OkStatus();
  const uint64_t generation = worker_.place().generation;
  RETURN_IF_ERROR(CommitToSlots(step, generation));
  const std::optional<SavedStep> saved = slots_->Find(step, generation);
  if (!saved.has_value()) return InternalError(absl::StrCat("step ", step, " is gone"));
  ++committed_;
  if (spill_ != nullptr && kept_.spills) spill_->Committed(*saved, *slots_);
  Committed(committed_, *saved);
  return OkStatus();
}

Status NodeMemory::Spill(const std::string& directory, std::chrono::nanoseconds every) {
  auto spill = std::make_unique<memory::Spill>(worker_, directory, kept_.rank, kept_.ranks, every);
  RETURN_IF_ERROR(spill->directory().Check());
  // One more, which is being spilled.
  slots_.emplace(options_.directory, kept_.name, kept_.slots + 1);
  spill_ = std::move(spill);
  return OkStatus();
}

Result<std::unique_ptr<Communicator>> NodeMemory::ConnectAll() {
  const AbsenceNotice notice(worker_, absl::StrCat("memory checkpoint/latest/", ++latest_calls_),
                             TellAbsence());
  CommunicatorOptions options;
  options.name = "memory checkpoint";
  options.timeout = options_.timeout;
  return ConnectCommunicator(worker_, options);
}

Result<std::optional<SavedState>> NodeMemory::Latest() {
  RETURN_IF_ERROR(Wait());
  AwaitRoom();
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator, ConnectAll());
  ASSIGN_OR_RETURN(Found found, Find(*communicator));
  if (found.step == kNoStep && spill_ != nullptr) {
    ASSIGN_OR_RETURN(found, FindSpilled(*communicator));
  }
  if (found.step == kNoStep) {
    RETURN_IF_ERROR(CheckNothingIsLost(*communicator));
    return std::optional<SavedState>();
  }
  const std::optional<SlotLabel> label = ReadLabel(found.path);
  if (!label.has_value()) return InternalError(absl::StrCat("step ", found.step, " is gone"));
  ASSIGN_OR_RETURN(read_, MapState(found.path, label->bytes));
  return std::optional<SavedState>({found.step, {read_->data() + kStateOffset, label->bytes}});
}

Result<std::optional<bool>> NodeMemory::SavedReplicated() {
  RETURN_IF_ERROR(Wait());
  AwaitRoom();
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator, ConnectAll());
  ASSIGN_OR_RETURN(const NewestState newest, FindNewest(*communicator));
  if (newest.step == kNoStep) return std::optional<bool>();
  return std::optional<bool>(newest.replicated);
}

Result<NodeMemory::NewestState> NodeMemory::FindNewest(Communicator& communicator) {
  // All fields have 8 bytes; one that is saved in a later generation is newer.
  struct Offer {
    int64_t generation = -1;
    int64_t step = kNoStep;
    int64_t replicated = 0;
    int64_t ranks = 0;
    bool operator<(const Offer& other) const {
      return std::tie(generation, step) < std::tie(other.generation, other.step);
    }
  };
  constexpr size_t kFields = sizeof(Offer) / sizeof(int64_t);
  Offer own;
  const auto offer = [&own](const SlotLabel& label, bool replicated) {
    own = std::max(own, {static_cast<int64_t>(label.generation), label.step, replicated,
                         replicated ? 1 : label.world_size});
  };
  const int most_slots = kReplicatedSlots + 1;  // one more where states are spilled
  for (const SavedStep& saved : MemorySlots(directory(), kReplicatedName, most_slots).Whole()) {
    offer(saved, true);
  }
  for (const RankFile& file : RankFiles(directory())) offer(file.label, false);
  if (own.step == kNoStep && spill_ != nullptr) {
    // Those of one rank are what a replicated state is spilled as. A job of one rank has no other.
    const std::optional<std::pair<int64_t, int>> spilled = spill_->directory().Newest();
    if (spilled.has_value()) {
      const bool one = spilled->second == 1;
      const bool replicated = worker_.world_size() == 1 ? one && options_.replicated : one;
      own = {0, spilled->first, replicated, spilled->second};
    }
  }
  std::vector<Offer> all(worker_.world_size());
  RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({&own, kFields, DataType::kInt64},
                                         {all.data(), all.size() * kFields, DataType::kInt64}),
                  options_.timeout));
  const Offer newest = *std::max_element(all.begin(), all.end());
  return NewestState{newest.step, newest.replicated != 0, static_cast<int>(newest.ranks)};
}

Status NodeMemory::CheckNothingIsLost(Communicator& communicator) {
  ASSIGN_OR_RETURN(const NewestState newest, FindNewest(communicator));
  if (newest.step == kNoStep) return OkStatus();
  if (newest.replicated != options_.replicated) {
    const auto kind = [](bool replicated) {
      return replicated ? "replicated, one for all ranks" : "each rank's own, not replicated";
    };
    return FailedPreconditionError(
        absl::StrCat("the state of step ", newest.step, " was saved as ", kind(newest.replicated),
                     ", and is asked for as ", kind(options_.replicated),
                     ": ask for it as it was saved, or it would be lost"));
  }
  if (newest.ranks != worker_.world_size() && worker_.rank() == 0) {
    std::fprintf(
        stderr,
        "cadre: checkpoint in memory: the state of step %lld is of %d ranks, of which this "
        "job of %d can take none; it begins anew\n",
        static_cast<long long>(newest.step), newest.ranks, worker_.world_size());
  }
  return OkStatus();
}

Result<NodeMemory::Found> NodeMemory::FindSpilled(Communicator& communicator) {
  // Rank 0 says what is there: others might see one that has only just become whole.
  std::vector<std::string> names;
  for (const Spilled& spilled : spill_->directory().Whole()) {
    if (names.size() < kSpillsKept) names.push_back(spilled.name);
  }
  ASSIGN_OR_RETURN(const std::string offered,
                   backend::BroadcastBytes(communicator, absl::StrJoin(names, "\n"), 0,
                                           kMostOfferedBytes, options_.timeout));
  Status status;
  const std::vector<std::string> in_turn = absl::StrSplit(offered, '\n', absl::SkipEmpty());
  if (in_turn.empty()) {
    // To begin anew beside what somebody may want back is not what a restart is for.
    const std::string other = spill_->directory().OfOtherRanks();
    ASSIGN_OR_RETURN(const int64_t none, Least(communicator, other.empty() ? 1 : 0));
    if (none == 1) {
      const std::string others = spill_->directory().OfOtherUsers();
      if (!others.empty() && worker_.rank() == 0) {
        std::fprintf(stderr, "cadre: checkpoint in memory: a state is not loaded: %s\n",
                     others.c_str());
      }
      return Found();
    }
    return FailedPreconditionError(absl::StrCat(
        spill_->directory().path(), " has states of another number of ranks",
        other.empty() ? "" : absl::StrCat(" (", other, ")"),
        ", of which this job can take none; start it with as many, or spill to another directory"));
  }
  for (const std::string& name : in_turn) {
    const Status read = kept_.writes ? spill_->directory().Read(name, *slots_) : OkStatus();
    ASSIGN_OR_RETURN(const std::string problem, FirstProblem(communicator, read));
    if (!problem.empty()) {
      status.Update(Status(read.ok() ? StatusCode::kDataLoss : read.code(), problem));
      continue;
    }
    const std::optional<int64_t> step = SpillDirectory::StepOf(name);
    if (kept_.writes && step.has_value()) {
      // All have read the same one, and in this generation.
      RETURN_IF_ERROR(CommitToSlots(*step, worker_.place().generation));
    }
    RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options_.timeout));
    return Find(communicator);
  }
  if (status.ok()) return Found();
  return Status(status.code(), absl::StrCat("no state in ", spill_->directory().path(),
                                            " can be read by all ranks: ", status.message(),
                                            "; remove them to start from the beginning"));
}

Result<std::string> NodeMemory::FirstProblem(Communicator& communicator, const Status& own) {
  ASSIGN_OR_RETURN(const int64_t first,
                   Least(communicator, own.ok() ? communicator.size() : communicator.rank()));
  if (first == communicator.size()) return std::string();
  std::string text;
  if (first == communicator.rank()) {
    text = absl::StrCat("rank ", first, ": ", std::string(own.message()));
    std::fprintf(stderr, "cadre: checkpoint in memory: %s; that state is left out\n", text.c_str());
  }
  return backend::BroadcastBytes(communicator, std::move(text), static_cast<int>(first),
                                 kMostProblemBytes, options_.timeout);
}

Result<int64_t> NodeMemory::Least(Communicator& communicator, int64_t own) {
  int64_t least = own;
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllReduce({&least, 1, DataType::kInt64}, ReduceOp::kMin),
                              options_.timeout));
  return least;
}

}  // namespace cadre::memory
