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
#include "worker_runtime/memory/memory_slots.h"

namespace cadre {
namespace {

using memory::MemorySlots;
using memory::SavedStep;

// A rank may commit a step while another still copies the one before, and begins the next only when
// that one is whole: of three, one is always common to all.
constexpr int kSlotsOfARank = 3;
// Any one will do where all ranks have the same.
constexpr int kSlotsOfANode = 2;
constexpr int kMostSlots = std::max(kSlotsOfARank, kSlotsOfANode);
// What nodes without a state get at a time.
constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr int64_t kNoStep = -1;

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

class NodeMemory : public MemoryCheckpoint {
 public:
  NodeMemory(Worker& worker, const MemoryCheckpointOptions& options, const std::string& directory)
      : worker_(worker),
        options_(options),
        writes_(!options.replicated || worker.place().local_rank == 0),
        slots_(directory, options.replicated ? "replicated" : absl::StrCat("rank-", worker.rank()),
               options.replicated ? kSlotsOfANode : kSlotsOfARank) {}
  ~NodeMemory() override { (void)Wait(); }

  Status Save(int64_t step, Span<const StatePart> parts) override {
    RETURN_IF_ERROR(Wait());
    if (!writes_) return OkStatus();
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

  Status Wait() override {
    if (copying_.joinable()) copying_.join();
    return std::exchange(copied_, OkStatus());
  }

  Status Write(Span<const StatePart> parts) override {
    if (!writes_) return OkStatus();
    ASSIGN_OR_RETURN(char* to, slots_.Begin(SizeOf(parts)));
    for (const StatePart& part : parts) {
      if (part.size > 0) std::memcpy(to, part.data, part.size);
      to += part.size;
    }
    return OkStatus();
  }

  Status Commit(int64_t step) override {
    if (step < 0) return InvalidArgumentError(absl::StrCat("step ", step, " is below 0"));
    return writes_ ? Status(slots_.Commit(step, worker_.world_size())) : OkStatus();
  }

  Result<std::optional<SavedState>> Latest() override;

 private:
  // Steps that this rank could take, kNoStep behind them.
  std::array<int64_t, kMostSlots> Steps() const;
  std::optional<SavedStep> Find(int64_t step) const;
  // From the first rank that has it to all nodes that have not.
  Status Share(Communicator& communicator, int64_t step, int from);
  Status Broadcast(Communicator& communicator, int64_t step, int from);

  Worker& worker_;
  const MemoryCheckpointOptions options_;
  const bool writes_;
  MemorySlots slots_;
  // Writes copied_, which is read once it has been joined.
  std::thread copying_;
  Status copied_;
};

std::array<int64_t, kMostSlots> NodeMemory::Steps() const {
  std::array<int64_t, kMostSlots> steps;
  steps.fill(kNoStep);
  size_t next = 0;
  for (const SavedStep& saved : slots_.Whole()) {
    if (options_.replicated || saved.world_size == worker_.world_size()) steps[next++] = saved.step;
  }
  return steps;
}

std::optional<SavedStep> NodeMemory::Find(int64_t step) const {
  for (const SavedStep& saved : slots_.Whole()) {
    if (saved.step == step) return saved;
  }
  return std::nullopt;
}

// Of `steps`, kMostSlots for each rank. kNoStep: there is none.
int64_t NewestOfAll(const std::vector<int64_t>& steps, bool replicated) {
  if (replicated) return *std::max_element(steps.begin(), steps.end());
  int64_t newest = kNoStep;
  for (auto candidate = steps.begin(); candidate != steps.begin() + kMostSlots; ++candidate) {
    bool all = true;
    for (auto rank = steps.begin(); rank != steps.end(); rank += kMostSlots) {
      all = all && std::find(rank, rank + kMostSlots, *candidate) != rank + kMostSlots;
    }
    if (all) newest = std::max(newest, *candidate);
  }
  return newest;
}

// The first rank with `step`; nullopt: all have it.
std::optional<int> OwnerIfSomeLack(const std::vector<int64_t>& steps, int64_t step) {
  std::optional<int> owner;
  bool some_lack = false;
  for (size_t i = 0; i < steps.size(); i += kMostSlots) {
    const auto rank = steps.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(rank, rank + kMostSlots, step) == rank + kMostSlots) {
      some_lack = true;
    } else if (!owner.has_value()) {
      owner = static_cast<int>(i / kMostSlots);
    }
  }
  return some_lack ? owner : std::nullopt;
}

Result<std::optional<SavedState>> NodeMemory::Latest() {
  RETURN_IF_ERROR(Wait());
  CommunicatorOptions connect;
  connect.name = "memory checkpoint";
  connect.timeout = options_.timeout;
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                   ConnectCommunicator(worker_, connect));
  std::array<int64_t, kMostSlots> own = Steps();
  std::vector<int64_t> all(own.size() * worker_.world_size());
  RETURN_IF_ERROR(WaitOrAbort(*communicator,
                              communicator->AllGather({own.data(), own.size(), DataType::kInt64},
                                                      {all.data(), all.size(), DataType::kInt64}),
                              options_.timeout));
  const int64_t step = NewestOfAll(all, options_.replicated);
  if (step == kNoStep) return std::optional<SavedState>();
  if (const std::optional<int> owner = OwnerIfSomeLack(all, step)) {
    RETURN_IF_ERROR(Share(*communicator, step, *owner));
  }
  // Newer ones that not all have: another generation would take them for common.
  if (writes_) RETURN_IF_ERROR(slots_.DropAbove(step));
  const std::optional<SavedStep> saved = Find(step);
  if (!saved.has_value()) return InternalError(absl::StrCat("step ", step, " is gone"));
  ASSIGN_OR_RETURN(const char* const bytes, slots_.Read(*saved));
  return std::optional<SavedState>({step, {bytes, saved->bytes}});
}

Status NodeMemory::Share(Communicator& communicator, int64_t step, int from) {
  const Status status = Broadcast(communicator, step, from);
  // The others would wait for this rank.
  if (!status.ok()) communicator.Abort();
  return status;
}

Status NodeMemory::Broadcast(Communicator& communicator, int64_t step, int from) {
  const std::optional<SavedStep> saved = Find(step);
  int64_t bytes = saved.has_value() ? static_cast<int64_t>(saved->bytes) : 0;
  RETURN_IF_ERROR(WaitOrAbort(
      communicator, communicator.Broadcast({&bytes, 1, DataType::kInt64}, from), options_.timeout));
  const bool keeps = writes_ && !saved.has_value();
  char* room = nullptr;
  std::vector<char> scratch;
  if (worker_.rank() == from) {
    // Not written to: it is the root's.
    ASSIGN_OR_RETURN(const char* const own, slots_.Read(*saved));
    room = const_cast<char*>(own);
  } else if (keeps) {
    ASSIGN_OR_RETURN(room, slots_.Begin(static_cast<size_t>(bytes)));
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
  if (keeps) RETURN_IF_ERROR(slots_.Commit(step, worker_.world_size()));
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
