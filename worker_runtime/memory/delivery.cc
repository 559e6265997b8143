#include "worker_runtime/memory/delivery.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/mapped_file.h"
#include "worker_runtime/memory/files/rank_files.h"

namespace cadre::memory {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr int kTag = 1;

std::vector<Holding> HeldHere(const WorkerPlace& place, const std::string& directory) {
  std::vector<Holding> held;
  // One rank says it for its node.
  if (place.local_rank != 0) return held;
  for (const RankFile& file : RankFiles(directory)) {
    const SlotLabel& label = file.label;
    if (label.world_size != place.world_size) continue;
    held.push_back({file.rank, place.node_rank, label.step, static_cast<int64_t>(label.generation),
                    static_cast<int64_t>(label.bytes)});
  }
  return held;
}

// The buffer of every chunk of `bytes` at `data`.
std::vector<Buffer> Chunks(char* data, size_t bytes) {
  std::vector<Buffer> chunks;
  for (size_t done = 0; done < bytes; done += kChunkBytes) {
    chunks.push_back({data + done, std::min(kChunkBytes, bytes - done), DataType::kUint8});
  }
  return chunks;
}

Status SendAll(Communicator& communicator, const Agreement& agreement, const std::string& directory,
               std::chrono::nanoseconds timeout) {
  for (const Delivery& delivery : agreement.deliveries) {
    if (delivery.from != communicator.rank()) continue;
    const size_t bytes = static_cast<size_t>(delivery.bytes);
    ASSIGN_OR_RETURN(const MappedFile file,
                     MapState(PathOf(agreement, delivery.rank, directory), bytes));
    for (const Buffer& chunk : Chunks(file.data() + kStateOffset, bytes)) {
      RETURN_IF_ERROR(
          WaitOrAbort(communicator, communicator.Send(chunk, delivery.rank, kTag), timeout));
    }
  }
  return OkStatus();
}

// What is being received keeps its memory until it is over.
Status Exchange(Communicator& communicator, const Agreement& agreement,
                const std::string& directory, MemorySlots& own, std::chrono::nanoseconds timeout) {
  std::vector<std::shared_ptr<Work>> coming;
  for (const Delivery& delivery : agreement.deliveries) {
    if (delivery.rank != communicator.rank()) continue;
    const size_t bytes = static_cast<size_t>(delivery.bytes);
    ASSIGN_OR_RETURN(char* const room, own.Begin(bytes));
    for (const Buffer& chunk : Chunks(room, bytes)) {
      coming.push_back(communicator.Receive(chunk, delivery.from, kTag));
    }
  }
  // Behind the receives, since two nodes may wait for each other's.
  Status status = SendAll(communicator, agreement, directory, timeout);
  for (const std::shared_ptr<Work>& work : coming) {
    status.Update(WaitOrAbort(communicator, work, timeout));
  }
  return status;
}

}  // namespace

Result<std::optional<Agreement>> AgreeWithAll(Communicator& communicator, const WorkerPlace& place,
                                              const std::string& directory,
                                              std::chrono::nanoseconds timeout) {
  std::vector<Holding> held = HeldHere(place, directory);
  const size_t ranks = static_cast<size_t>(communicator.size());
  std::array<int64_t, 2> own = {place.node_rank, static_cast<int64_t>(held.size())};
  std::vector<int64_t> all(own.size() * ranks);
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllGather({own.data(), own.size(), DataType::kInt64},
                                                     {all.data(), all.size(), DataType::kInt64}),
                              timeout));
  std::vector<int> nodes;
  std::vector<size_t> counts;
  size_t total = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    nodes.push_back(static_cast<int>(all[2 * rank]));
    total += static_cast<size_t>(all[2 * rank + 1]);
    counts.push_back(static_cast<size_t>(all[2 * rank + 1]) * kHoldingFields);
  }
  if (total == 0) return std::optional<Agreement>();
  std::vector<Holding> holdings(total);
  RETURN_IF_ERROR(WaitOrAbort(
      communicator,
      communicator.AllGatherVarying({held.data(), held.size() * kHoldingFields, DataType::kInt64},
                                    {holdings.data(), total * kHoldingFields, DataType::kInt64},
                                    counts),
      timeout));
  return Agree(holdings, nodes);
}

Status Deliver(Communicator& communicator, const Agreement& agreement, const std::string& directory,
               MemorySlots& own, std::chrono::nanoseconds timeout) {
  Status status = Exchange(communicator, agreement, directory, own, timeout);
  const auto is_own = [&communicator](const Delivery& delivery) {
    return delivery.rank == communicator.rank();
  };
  if (status.ok() &&
      std::any_of(agreement.deliveries.begin(), agreement.deliveries.end(), is_own)) {
    status.Update(own.Commit(agreement.step, agreement.generation, communicator.size()));
  }
  // The others would wait for this rank.
  if (!status.ok()) communicator.Abort();
  return status;
}

std::string PathOf(const Agreement& agreement, int rank, const std::string& directory) {
  for (const RankFile& file : RankFiles(directory)) {
    if (file.rank == rank && file.label.step == agreement.step &&
        file.label.generation == agreement.generation) {
      return file.path;
    }
  }
  return "";
}

}  // namespace cadre::memory
