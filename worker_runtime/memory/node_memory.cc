#include "worker_runtime/memory/node_memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cadre/connect.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/backend/group.h"
#include "worker_runtime/checkpoint/copy_parts.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/spill.h"

namespace cadre::memory {
namespace {

// Limits the names of the states that may be read, in bytes.
constexpr int64_t kMostOfferedBytes = 1 << 10;
// Limits the text of a rank that cannot read its state: a path and the error there, in bytes.
constexpr int64_t kMostProblemBytes = 8 << 10;

size_t SizeOf(Span<const StatePart> parts) {
  size_t bytes = 0;
  for (const StatePart& part : parts) bytes += part.size;
  return bytes;
}

// Reports on standard error, because a user at a silent program wants to know which ranks it waits
// for.
AbsenceNoticeOptions PrintAbsence() {
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
  // AwaitRoom() is called here, not only in Write(): if a rank went on training while its last step
  // is still being sent, the others could overwrite the step before.
  AwaitRoom();
  const auto copy = [this, step, copied = std::vector<StatePart>(parts.begin(), parts.end())] {
    copied_ = Write(copied);
    if (copied_.ok()) copied_ = Commit(step);
  };
  try {
    copying_ = std::thread(copy);
  } catch (const std::system_error&) {
    copy();  // no thread could be started
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
  if (!saved.has_value())
    return InternalError(absl::StrCat("the state of step ", step, " is no longer in memory"));
  ++committed_;
  if (spill_ != nullptr && kept_.spills) spill_->Committed(*saved, *slots_);
  Committed(committed_, *saved);
  return OkStatus();
}

Status NodeMemory::Spill(const std::string& directory, std::chrono::nanoseconds every) {
  auto spill = std::make_unique<memory::Spill>(worker_, directory, kept_.rank, kept_.ranks, every);
  RETURN_IF_ERROR(spill->directory().Check());
  // One more slot, for the state that is being spilled.
  slots_.emplace(options_.directory, kept_.name, kept_.slots + 1);
  spill_ = std::move(spill);
  return OkStatus();
}

Result<std::unique_ptr<Communicator>> NodeMemory::ConnectAll() {
  const AbsenceNotice notice(worker_, absl::StrCat("memory checkpoint/latest/", ++latest_calls_),
                             PrintAbsence());
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
  if (!label.has_value())
    return InternalError(absl::StrCat("the state of step ", found.step, " is no longer in memory"));
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
  // All fields have 8 bytes. A state saved in a later generation is newer.
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
  for (const SavedStep& saved : MemorySlots(directory(), kReplicatedName, most_slots).Complete()) {
    offer(saved, true);
  }
  for (const RankFile& file : RankFiles(directory())) offer(file.label, false);
  if (own.step == kNoStep && spill_ != nullptr) {
    // Replicated states are spilled as states of one rank. A job of one rank has no others, so
    // there options_.replicated decides.
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
                     ", but is asked for as ", kind(options_.replicated),
                     ": ask for it as it was saved, or it would be lost"));
  }
  if (newest.ranks != worker_.world_size() && worker_.rank() == 0) {
    std::fprintf(stderr,
                 "cadre: checkpoint in memory: the state of step %lld is of %d ranks, and a "
                 "job of %d ranks cannot load it; training starts from the beginning\n",
                 static_cast<long long>(newest.step), newest.ranks, worker_.world_size());
  }
  return OkStatus();
}

Result<NodeMemory::Found> NodeMemory::FindSpilled(Communicator& communicator) {
  // Rank 0 decides what is there, because other ranks might see a state that has just become
  // complete.
  std::vector<std::string> names;
  for (const Spilled& spilled : spill_->directory().Complete()) {
    if (names.size() < kSpillsKept) names.push_back(spilled.name);
  }
  ASSIGN_OR_RETURN(const std::string offered,
                   backend::BroadcastBytes(communicator, absl::StrJoin(names, "\n"), 0,
                                           kMostOfferedBytes, options_.timeout));
  Status status;
  const std::vector<std::string> in_turn = absl::StrSplit(offered, '\n', absl::SkipEmpty());
  if (in_turn.empty()) {
    // A restart must not start over next to a state that the user may want back.
    const std::string other = spill_->directory().DescribeOtherRankCounts();
    ASSIGN_OR_RETURN(const int64_t none, MinimumOverRanks(communicator, other.empty() ? 1 : 0));
    if (none == 1) {
      const std::string others = spill_->directory().DescribeOtherUsers();
      if (!others.empty() && worker_.rank() == 0) {
        std::fprintf(stderr, "cadre: checkpoint in memory: a state is not loaded: %s\n",
                     others.c_str());
      }
      return Found();
    }
    return FailedPreconditionError(absl::StrCat(spill_->directory().path(),
                                                " has states of another number of ranks",
                                                other.empty() ? "" : absl::StrCat(" (", other, ")"),
                                                ", which this job cannot load; start it with as "
                                                "many ranks, or spill to another directory"));
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
      // All ranks have read the same state, and in this generation.
      RETURN_IF_ERROR(CommitToSlots(*step, worker_.place().generation));
    }
    RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options_.timeout));
    return Find(communicator);
  }
  if (status.ok()) return Found();
  return Status(status.code(),
                absl::StrCat("no state in ", spill_->directory().path(),
                             " can be read by all ranks: ", status.message(),
                             "; remove the states there to start from the beginning"));
}

Result<std::string> NodeMemory::FirstProblem(Communicator& communicator, const Status& own) {
  ASSIGN_OR_RETURN(
      const int64_t first,
      MinimumOverRanks(communicator, own.ok() ? communicator.size() : communicator.rank()));
  if (first == communicator.size()) return std::string();
  std::string text;
  if (first == communicator.rank()) {
    text = absl::StrCat("rank ", first, ": ", std::string(own.message()));
    std::fprintf(stderr, "cadre: checkpoint in memory: %s; that state is left out\n", text.c_str());
  }
  return backend::BroadcastBytes(communicator, std::move(text), static_cast<int>(first),
                                 kMostProblemBytes, options_.timeout);
}

Result<int64_t> NodeMemory::MinimumOverRanks(Communicator& communicator, int64_t own) {
  int64_t least = own;
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllReduce({&least, 1, DataType::kInt64}, ReduceOp::kMin),
                              options_.timeout));
  return least;
}

namespace {

// Nodes without a state receive it in chunks of this size.
constexpr size_t kChunkBytes = size_t{4} << 20;

// The states of one node, with one more slot where states are spilled.
using Replicas = std::array<Replica, kReplicatedSlots + 1>;

Replica Newest(const std::vector<Replicas>& of_ranks) {
  Replica newest;
  for (const Replicas& replicas : of_ranks) {
    newest = std::max(newest, *std::max_element(replicas.begin(), replicas.end()));
  }
  return newest;
}

// Returns the first rank that has the state; nullopt if all have it.
std::optional<int> OwnerIfSomeLack(const std::vector<Replicas>& of_ranks, const Replica& wanted) {
  const auto has = [&wanted](const Replicas& replicas) {
    return std::find(replicas.begin(), replicas.end(), wanted) != replicas.end();
  };
  if (std::all_of(of_ranks.begin(), of_ranks.end(), has)) return std::nullopt;
  return static_cast<int>(std::find_if(of_ranks.begin(), of_ranks.end(), has) - of_ranks.begin());
}

uint64_t GenerationOf(const Replica& replica) { return static_cast<uint64_t>(replica.generation); }

}  // namespace

ReplicatedMemory::ReplicatedMemory(Worker& worker, const MemoryCheckpointOptions& options)
    : NodeMemory(worker, options,
                 {kReplicatedName, kReplicatedSlots, 0, 1, worker.place().local_rank == 0,
                  worker.rank() == 0}) {}

Result<NodeMemory::Found> ReplicatedMemory::Find(Communicator& communicator) {
  Replicas own;
  size_t next = 0;
  for (const SavedStep& saved : slots().Complete()) {
    own[next++] = {static_cast<int64_t>(saved.generation), saved.step};
  }
  const size_t fields = own.size() * kReplicaFields;
  std::vector<Replicas> all(worker().world_size());
  RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({own.data(), fields, DataType::kInt64},
                                         {all.data(), all.size() * fields, DataType::kInt64}),
                  options().timeout));
  const Replica newest = Newest(all);
  if (newest.step == kNoStep) return Found();
  if (const std::optional<int> owner = OwnerIfSomeLack(all, newest)) {
    RETURN_IF_ERROR(Share(communicator, newest, *owner));
  }
  const std::optional<SavedStep> saved = slots().Find(newest.step, GenerationOf(newest));
  if (!saved.has_value())
    return InternalError(
        absl::StrCat("the state of step ", newest.step, " is no longer in memory"));
  return Found{newest.step, slots().Path(saved->slot)};
}

Status ReplicatedMemory::Share(Communicator& communicator, const Replica& replica, int from) {
  const Status status = Broadcast(communicator, replica, from);
  // Otherwise the other ranks would wait for this one.
  if (!status.ok()) communicator.Abort();
  return status;
}

Status ReplicatedMemory::Broadcast(Communicator& communicator, const Replica& replica, int from) {
  const std::optional<SavedStep> saved = slots().Find(replica.step, GenerationOf(replica));
  int64_t bytes = saved.has_value() ? static_cast<int64_t>(saved->bytes) : 0;
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.Broadcast({&bytes, 1, DataType::kInt64}, from),
                              options().timeout));
  const bool keeps = kept().writes && !saved.has_value();
  std::optional<MappedFile> given;
  std::vector<char> scratch;
  char* room = nullptr;
  if (worker().rank() == from) {
    // This mapping is read-only. The root of a broadcast only reads it.
    ASSIGN_OR_RETURN(given, MapState(slots().Path(saved->slot), saved->bytes));
    room = given->data() + kStateOffset;
  } else if (keeps) {
    ASSIGN_OR_RETURN(room, slots().Begin(static_cast<size_t>(bytes)));
  } else {
    scratch.resize(std::min(kChunkBytes, static_cast<size_t>(bytes)));
  }
  for (size_t done = 0; done < static_cast<size_t>(bytes); done += kChunkBytes) {
    const size_t size = std::min(kChunkBytes, static_cast<size_t>(bytes) - done);
    char* const chunk = room == nullptr ? scratch.data() : room + done;
    RETURN_IF_ERROR(WaitOrAbort(communicator,
                                communicator.Broadcast({chunk, size, DataType::kUint8}, from),
                                options().timeout));
  }
  // The copy is saved under the owner's generation, so that all copies count as one state later.
  if (keeps) RETURN_IF_ERROR(CommitToSlots(replica.step, GenerationOf(replica)));
  return WaitOrAbort(communicator, communicator.Barrier(), options().timeout);
}

namespace {

std::string KeyOf(const std::string& call, int rank) { return absl::StrCat(call, "/", rank); }

}  // namespace

std::string AbsentRanks(Worker& worker, const std::string& call) {
  std::vector<std::string> first;
  size_t total = 0;
  for (int rank = 0; rank < worker.world_size(); ++rank) {
    if (rank == worker.rank()) continue;
    if (worker.Get(KeyOf(call, rank), std::chrono::nanoseconds(0)).ok()) {
      // Only the lowest rank in the call asks for all ranks; the others stop at the first lower
      // rank.
      if (rank < worker.rank()) return "";
      continue;
    }
    ++total;
    if (first.size() < kFirstFew) first.push_back(absl::StrCat(rank));
  }
  if (total == 0) return "";
  return absl::StrCat(total == 1 ? "rank " : "ranks ", FirstFew(first, total));
}

AbsenceNotice::AbsenceNotice(Worker& worker, const std::string& call, AbsenceNoticeOptions options)
    : worker_(worker), call_(call), options_(std::move(options)) {
  if (worker.world_size() == 1) return;
  if (!worker.Set(KeyOf(call, worker.rank()), "here").ok()) return;
  watching_ = std::thread([this] { Watch(); });
}

AbsenceNotice::~AbsenceNotice() {
  over_.Notify();
  if (watching_.joinable()) watching_.join();
}

void AbsenceNotice::Watch() {
  std::chrono::milliseconds wait = options_.first;
  while (!over_.WaitForNotificationWithTimeout(absl::FromChrono(wait))) {
    const std::string absent = AbsentRanks(worker_, call_);
    // All ranks may have come meanwhile.
    if (!absent.empty() && !over_.HasBeenNotified()) options_.say(absent);
    wait = options_.every;
  }
}

}  // namespace cadre::memory
