#include "cadre/memory_checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/connect.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/agreement.h"
#include "worker_runtime/memory/delivery.h"
#include "worker_runtime/memory/mapped_file.h"
#include "worker_runtime/memory/memory_slots.h"
#include "worker_runtime/memory/partner.h"
#include "worker_runtime/memory/rank_files.h"
#include "worker_runtime/memory/slot_file.h"
#include "worker_runtime/memory/spill.h"
#include "worker_runtime/memory/spill_directory.h"

namespace cadre {
namespace {

using memory::MappedFile;
using memory::MemorySlots;
using memory::SavedStep;

// A rank may commit a step while another still copies the one before, and begins the next only when
// that one is whole: of three, one is always common to all.
constexpr int kSlotsOfARank = 3;
// Any one will do where all ranks have the same.
constexpr int kSlotsOfANode = 2;
// What nodes without a state get at a time.
constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr int64_t kNoStep = -1;
// With the end of its text.
constexpr size_t kSpilledName = 64;

Result<std::string> DirectoryOf(const MemoryCheckpointOptions& options) {
  std::string path = options.directory;
  if (path.empty()) {
    const char* const given = std::getenv("CADRE_CHECKPOINT_MEMORY");
    if (given == nullptr || *given == '\0') {
      return FailedPreconditionError(
          "nobody keeps memory for this worker's checkpoints: it was not started by 'cadre run', "
          "and no folder is given");
    }
    path = given;
  }
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return ErrnoToStatus(errno, path);
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 022) != 0) {
    return FailedPreconditionError(
        absl::StrCat(path, " must be a folder of this user that nobody else may write to"));
  }
  return path;
}

size_t SizeOf(Span<const StatePart> parts) {
  size_t bytes = 0;
  for (const StatePart& part : parts) bytes += part.size;
  return bytes;
}

// Of a replicated state on one node, and one more where states are spilled.
using Steps = std::array<int64_t, kSlotsOfANode + 1>;

class NodeMemory : public MemoryCheckpoint {
 public:
  NodeMemory(Worker& worker, const MemoryCheckpointOptions& options, const std::string& directory)
      : worker_(worker),
        options_(options),
        directory_(directory),
        writes_(!options.replicated || worker.place().local_rank == 0) {
    MakeSlots(0);
  }
  ~NodeMemory() override { (void)Wait(); }

  Status Save(int64_t step, Span<const StatePart> parts) override;
  Status Wait() override {
    if (copying_.joinable()) copying_.join();
    Status status = std::exchange(copied_, OkStatus());
    if (spill_ != nullptr) status.Update(spill_->TakeProblem());
    return status;
  }
  Status Spill(const std::string& directory, std::chrono::nanoseconds every) override;
  Status WaitForPartner() override {
    if (partner_ == nullptr) return OkStatus();
    partner_->Settle();
    return partner_->TakeProblem();
  }

  Status Write(Span<const StatePart> parts) override;
  Status Commit(int64_t step) override;

  Result<std::optional<SavedState>> Latest() override;

 private:
  bool has_partner() const {
    return options_.partner && !options_.replicated && worker_.place().nodes > 1;
  }
  void MakeSlots(int more) {
    slots_.emplace(directory_, options_.replicated ? "replicated" : memory::OwnName(worker_.rank()),
                   (options_.replicated ? kSlotsOfANode : kSlotsOfARank) + more);
  }
  Status CommitOwn(int64_t step);
  // States of ranks that are, and have their partner, elsewhere now.
  void RemoveOthers();

  // Goes back to the step on which all agree, kNoStep where there is none; the file, if this rank's
  // node has one.
  struct Found {
    int64_t step = kNoStep;
    std::string path;
  };
  Result<Found> FindOwn(Communicator& communicator);
  Result<Found> FindReplicated(Communicator& communicator);
  // From the directory, where all ranks' memory has none.
  Result<Found> FindSpilled(Communicator& communicator);
  Result<bool> AllRead(Communicator& communicator, const Status& own);
  // From the first rank that has it to all nodes that have not.
  Status Share(Communicator& communicator, int64_t step, int from);
  Status Broadcast(Communicator& communicator, int64_t step, int from);

  Worker& worker_;
  const MemoryCheckpointOptions options_;
  const std::string directory_;
  const bool writes_;
  std::optional<MemorySlots> slots_;
  std::unique_ptr<memory::Spill> spill_;
  int committed_ = 0;
  std::optional<MappedFile> read_;
  // Writes copied_, which is read once it has been joined.
  std::thread copying_;
  Status copied_;
  std::unique_ptr<memory::Partner> partner_;
};

Status NodeMemory::Save(int64_t step, Span<const StatePart> parts) {
  RETURN_IF_ERROR(Wait());
  if (!writes_) return OkStatus();
  // Here and not only in Write(): a rank that trained on while its last step is on its way would
  // let the others write over the one before.
  if (partner_ != nullptr) partner_->Settle();
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

Status NodeMemory::Write(Span<const StatePart> parts) {
  if (!writes_) return OkStatus();
  if (partner_ != nullptr) partner_->Settle();
  ASSIGN_OR_RETURN(char* to, slots_->Begin(SizeOf(parts)));
  for (const StatePart& part : parts) {
    if (part.size > 0) std::memcpy(to, part.data, part.size);
    to += part.size;
  }
  return OkStatus();
}

Status NodeMemory::Commit(int64_t step) {
  if (step < 0) return InvalidArgumentError(absl::StrCat("step ", step, " is below 0"));
  if (!writes_) return OkStatus();
  RETURN_IF_ERROR(slots_->Commit(step, worker_.place().generation, worker_.world_size()));
  ++committed_;
  const bool spills = spill_ != nullptr && (!options_.replicated || worker_.rank() == 0);
  if (const auto saved = spills ? slots_->Find(step) : std::nullopt) {
    spill_->Committed(committed_, *saved, *slots_);
  }
  return options_.replicated ? OkStatus() : CommitOwn(step);
}

Status NodeMemory::CommitOwn(int64_t step) {
  if (has_partner()) {
    if (partner_ == nullptr) {
      partner_ = std::make_unique<memory::Partner>(worker_, directory_, options_.timeout);
    }
    const std::optional<SavedStep> saved = slots_->Find(step);
    if (saved.has_value()) partner_->Send(*saved, slots_->Path(saved->slot));
  }
  // By now all ranks have one of this generation, and so have their partners.
  if (committed_ == kSlotsOfARank && worker_.place().local_rank == 0) RemoveOthers();
  return OkStatus();
}

Status NodeMemory::Spill(const std::string& directory, std::chrono::nanoseconds every) {
  const int rank = options_.replicated ? 0 : worker_.rank();
  const int ranks = options_.replicated ? 1 : worker_.world_size();
  auto spill = std::make_unique<memory::Spill>(worker_, directory, rank, ranks, every);
  RETURN_IF_ERROR(spill->directory().Check());
  MakeSlots(1);
  spill_ = std::move(spill);
  return OkStatus();
}

void NodeMemory::RemoveOthers() {
  const WorkerPlace& place = worker_.place();
  const std::optional<memory::Neighbours> neighbours =
      partner_ == nullptr ? std::nullopt : partner_->neighbours();
  if (has_partner() && !neighbours.has_value()) return;
  memory::RemoveOthers(directory_, [&](int rank, bool is_copy) {
    if (!is_copy) return rank >= place.rank && rank < place.rank + place.local_world_size;
    return neighbours.has_value() && rank >= neighbours->first_kept &&
           rank < neighbours->first_kept + neighbours->kept_count;
  });
}

// The first rank with `step`; nullopt: all have it.
std::optional<int> OwnerIfSomeLack(const std::vector<Steps>& steps, int64_t step) {
  const auto has = [step](const Steps& of_rank) {
    return std::find(of_rank.begin(), of_rank.end(), step) != of_rank.end();
  };
  if (std::all_of(steps.begin(), steps.end(), has)) return std::nullopt;
  return static_cast<int>(std::find_if(steps.begin(), steps.end(), has) - steps.begin());
}

Result<std::optional<SavedState>> NodeMemory::Latest() {
  RETURN_IF_ERROR(Wait());
  if (partner_ != nullptr) partner_->Settle();
  CommunicatorOptions connect;
  connect.name = "memory checkpoint";
  connect.timeout = options_.timeout;
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                   ConnectCommunicator(worker_, connect));
  ASSIGN_OR_RETURN(Found found,
                   options_.replicated ? FindReplicated(*communicator) : FindOwn(*communicator));
  if (found.step == kNoStep && spill_ != nullptr) {
    ASSIGN_OR_RETURN(found, FindSpilled(*communicator));
  }
  if (found.step == kNoStep) return std::optional<SavedState>();
  const std::optional<memory::SlotLabel> label = memory::ReadLabel(found.path);
  if (!label.has_value()) return InternalError(absl::StrCat("step ", found.step, " is gone"));
  ASSIGN_OR_RETURN(read_, memory::MapState(found.path, label->bytes));
  return std::optional<SavedState>(
      {found.step, {read_->data() + memory::kStateOffset, label->bytes}});
}

Result<NodeMemory::Found> NodeMemory::FindOwn(Communicator& communicator) {
  ASSIGN_OR_RETURN(
      const std::optional<memory::Agreement> agreement,
      memory::AgreeWithAll(communicator, worker_.place(), directory_, options_.timeout));
  if (!agreement.has_value()) return Found();
  RETURN_IF_ERROR(memory::Deliver(communicator, *agreement, directory_, *slots_, options_.timeout));
  RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options_.timeout));
  // Newer ones that not all have: another generation would take them for common. Nobody saves
  // again before that is done.
  if (worker_.place().local_rank == 0) {
    RETURN_IF_ERROR(memory::GoBack(directory_, agreement->step, agreement->generation));
  }
  RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options_.timeout));
  return Found{agreement->step, memory::PathOf(*agreement, worker_.rank(), directory_)};
}

Result<NodeMemory::Found> NodeMemory::FindReplicated(Communicator& communicator) {
  Steps own;
  own.fill(kNoStep);
  size_t next = 0;
  for (const SavedStep& saved : slots_->Whole()) {
    own[next++] = saved.step;
  }
  std::vector<Steps> all(worker_.world_size());
  RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({own.data(), own.size(), DataType::kInt64},
                                         {all.data(), all.size() * own.size(), DataType::kInt64}),
                  options_.timeout));
  int64_t step = kNoStep;
  for (const Steps& steps : all)
    step = std::max(step, *std::max_element(steps.begin(), steps.end()));
  if (step == kNoStep) return Found();
  if (const std::optional<int> owner = OwnerIfSomeLack(all, step)) {
    RETURN_IF_ERROR(Share(communicator, step, *owner));
  }
  const std::optional<SavedStep> saved = slots_->Find(step);
  if (!saved.has_value()) return InternalError(absl::StrCat("step ", step, " is gone"));
  return Found{step, slots_->Path(saved->slot)};
}

Result<NodeMemory::Found> NodeMemory::FindSpilled(Communicator& communicator) {
  // Rank 0 says what is there: others might see one that has only just become whole.
  struct Offered {
    int64_t step = kNoStep;
    char name[kSpilledName] = {};
  };
  std::array<Offered, memory::kSpillsKept> offered;
  const std::vector<memory::Spilled> whole = spill_->directory().Whole();
  for (size_t i = 0; i < std::min(whole.size(), offered.size()); ++i) {
    offered[i].step = whole[i].step;
    whole[i].name.copy(offered[i].name, kSpilledName - 1);
  }
  RETURN_IF_ERROR(WaitOrAbort(
      communicator, communicator.Broadcast({offered.data(), sizeof(offered), DataType::kUint8}, 0),
      options_.timeout));
  Status status;
  for (const Offered& one : offered) {
    if (one.step == kNoStep) break;
    const Status read = writes_ ? spill_->directory().Read(one.name, *slots_) : OkStatus();
    ASSIGN_OR_RETURN(const bool all, AllRead(communicator, read));
    if (!all) {
      status.Update(read.ok() ? DataLossError("another rank cannot read its own") : read);
      continue;
    }
    if (writes_) {
      RETURN_IF_ERROR(slots_->Commit(one.step, worker_.place().generation, worker_.world_size()));
    }
    RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options_.timeout));
    if (!options_.replicated) return Found{one.step, slots_->Path(slots_->Find(one.step)->slot)};
    return FindReplicated(communicator);
  }
  if (status.ok()) return Found();
  return Status(status.code(), absl::StrCat("no state in ", spill_->directory().path(),
                                            " can be read by all ranks: ", status.message(),
                                            "; remove them to start from the beginning"));
}

Result<bool> NodeMemory::AllRead(Communicator& communicator, const Status& own) {
  int64_t all = own.ok() ? 1 : 0;
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllReduce({&all, 1, DataType::kInt64}, ReduceOp::kMin),
                              options_.timeout));
  return all == 1;
}

Status NodeMemory::Share(Communicator& communicator, int64_t step, int from) {
  const Status status = Broadcast(communicator, step, from);
  // The others would wait for this rank.
  if (!status.ok()) communicator.Abort();
  return status;
}

Status NodeMemory::Broadcast(Communicator& communicator, int64_t step, int from) {
  const std::optional<SavedStep> saved = slots_->Find(step);
  int64_t bytes = saved.has_value() ? static_cast<int64_t>(saved->bytes) : 0;
  RETURN_IF_ERROR(WaitOrAbort(
      communicator, communicator.Broadcast({&bytes, 1, DataType::kInt64}, from), options_.timeout));
  const bool keeps = writes_ && !saved.has_value();
  char* room = nullptr;
  std::vector<char> scratch;
  if (worker_.rank() == from) {
    // Not written to: it is the root's.
    ASSIGN_OR_RETURN(read_, memory::MapState(slots_->Path(saved->slot), saved->bytes));
    room = read_->data() + memory::kStateOffset;
  } else if (keeps) {
    ASSIGN_OR_RETURN(room, slots_->Begin(static_cast<size_t>(bytes)));
  } else {
    scratch.resize(std::min(kChunkBytes, static_cast<size_t>(bytes)));
  }
  for (size_t done = 0; done < static_cast<size_t>(bytes); done += kChunkBytes) {
    const size_t size = std::min(kChunkBytes, static_cast<size_t>(bytes) - done);
    char* const chunk = room == nullptr ? scratch.data() : room + done;
    RETURN_IF_ERROR(WaitOrAbort(communicator,
                                communicator.Broadcast({chunk, size, DataType::kUint8}, from),
                                options_.timeout));
  }
  if (keeps) {
    RETURN_IF_ERROR(slots_->Commit(step, worker_.place().generation, worker_.world_size()));
  }
  return WaitOrAbort(communicator, communicator.Barrier(), options_.timeout);
}

}  // namespace

Result<std::unique_ptr<MemoryCheckpoint>> MemoryCheckpoint::Open(
    Worker& worker, const MemoryCheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::string directory, DirectoryOf(options));
  return std::unique_ptr<MemoryCheckpoint>(
      std::make_unique<NodeMemory>(worker, options, directory));
}

}  // namespace cadre
