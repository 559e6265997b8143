#include "worker_runtime/memory/replicated_memory.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/mapped_file.h"
#include "worker_runtime/memory/files/slot_file.h"

namespace cadre::memory {
namespace {

// Any one will do where all ranks have the same.
constexpr int kSlots = 2;
// What nodes without a state get at a time.
constexpr size_t kChunkBytes = size_t{4} << 20;

// Of one node, and one more where states are spilled.
using Steps = std::array<int64_t, kSlots + 1>;

// The first rank with `step`; nullopt: all have it.
std::optional<int> OwnerIfSomeLack(const std::vector<Steps>& steps, int64_t step) {
  const auto has = [step](const Steps& of_rank) {
    return std::find(of_rank.begin(), of_rank.end(), step) != of_rank.end();
  };
  if (std::all_of(steps.begin(), steps.end(), has)) return std::nullopt;
  return static_cast<int>(std::find_if(steps.begin(), steps.end(), has) - steps.begin());
}

}  // namespace

ReplicatedMemory::ReplicatedMemory(Worker& worker, const MemoryCheckpointOptions& options)
    : NodeMemory(worker, options,
                 {"replicated", kSlots, 0, 1, worker.place().local_rank == 0, worker.rank() == 0}) {
}

Result<NodeMemory::Found> ReplicatedMemory::Find(Communicator& communicator) {
  Steps own;
  own.fill(kNoStep);
  size_t next = 0;
  for (const SavedStep& saved : slots().Whole()) own[next++] = saved.step;
  std::vector<Steps> all(worker().world_size());
  RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({own.data(), own.size(), DataType::kInt64},
                                         {all.data(), all.size() * own.size(), DataType::kInt64}),
                  options().timeout));
  int64_t step = kNoStep;
  for (const Steps& steps : all) {
    step = std::max(step, *std::max_element(steps.begin(), steps.end()));
  }
  if (step == kNoStep) return Found();
  if (const std::optional<int> owner = OwnerIfSomeLack(all, step)) {
    RETURN_IF_ERROR(Share(communicator, step, *owner));
  }
  const std::optional<SavedStep> saved = slots().Find(step);
  if (!saved.has_value()) return InternalError(absl::StrCat("step ", step, " is gone"));
  return Found{step, slots().Path(saved->slot)};
}

Status ReplicatedMemory::Share(Communicator& communicator, int64_t step, int from) {
  const Status status = Broadcast(communicator, step, from);
  // The others would wait for this rank.
  if (!status.ok()) communicator.Abort();
  return status;
}

Status ReplicatedMemory::Broadcast(Communicator& communicator, int64_t step, int from) {
  const std::optional<SavedStep> saved = slots().Find(step);
  int64_t bytes = saved.has_value() ? static_cast<int64_t>(saved->bytes) : 0;
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.Broadcast({&bytes, 1, DataType::kInt64}, from),
                              options().timeout));
  const bool keeps = kept().writes && !saved.has_value();
  std::optional<MappedFile> given;
  std::vector<char> scratch;
  char* room = nullptr;
  if (worker().rank() == from) {
    // Not written to: it is the root's.
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
  if (keeps) RETURN_IF_ERROR(CommitToSlots(step));
  return WaitOrAbort(communicator, communicator.Barrier(), options().timeout);
}

}  // namespace cadre::memory
