#include "worker_runtime/memory/partner_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/communicator.h"
#include "worker_runtime/absl_types.h"

namespace cadre::memory {
namespace {

// What must go through within the patience.
constexpr size_t kChunkBytes = size_t{4} << 20;

enum Tag { kAnnounce = 1, kAnswer, kChunk };

// Step, generation, ranks and bytes.
using Announcement = std::array<int64_t, 4>;

template <typename Numbers>
Buffer BufferOf(Numbers& numbers) {
  return {numbers.data(), numbers.size(), DataType::kInt64};
}

}  // namespace

PartnerLink::PartnerLink(wire::Connection connection, int own_rank, int peer,
                         std::chrono::nanoseconds patience)
    : connection_(std::move(connection)),
      peer_(peer),
      patience_(patience),
      channel_(connection_, own_rank, peer) {}

void PartnerLink::Stop() { shutdown(connection_.fd(), SHUT_RDWR); }

MonoTime PartnerLink::Deadline() const { return MonoNow() + patience_; }

Status PartnerLink::Send(const SlotLabel& label, const char* state) {
  Announcement announcement = {label.step, static_cast<int64_t>(label.generation), label.world_size,
                               static_cast<int64_t>(label.bytes)};
  RETURN_IF_ERROR(channel_.Send(BufferOf(announcement), kAnnounce, Deadline()));
  ASSIGN_OR_RETURN(StatusCode answer, HearAnswer());
  for (size_t done = 0; answer == StatusCode::kOk && done < label.bytes; done += kChunkBytes) {
    // The channel only reads what it sends.
    const Buffer chunk = {const_cast<char*>(state) + done,
                          std::min(kChunkBytes, label.bytes - done), DataType::kUint8};
    RETURN_IF_ERROR(channel_.Send(chunk, kChunk, Deadline()));
  }
  if (answer == StatusCode::kOk) {
    ASSIGN_OR_RETURN(answer, HearAnswer());
  }
  if (answer == StatusCode::kOk) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "rank ", peer_, " on the partner node has no memory for a copy of ", label.bytes, " bytes"));
}

Status PartnerLink::Receive(MemorySlots& slots) {
  Announcement announcement = {};
  RETURN_IF_ERROR(channel_.Receive(BufferOf(announcement), kAnnounce, MonoTime::Never()));
  const auto [step, generation, world_size, size] = announcement;
  const size_t bytes = static_cast<size_t>(size);
  const auto room = slots.Begin(bytes);
  RETURN_IF_ERROR(Answer(room.ok() ? StatusCode::kOk : StatusCode::kResourceExhausted));
  if (!room.ok()) return OkStatus();
  for (size_t done = 0; done < bytes; done += kChunkBytes) {
    const Buffer chunk = {*room + done, std::min(kChunkBytes, bytes - done), DataType::kUint8};
    RETURN_IF_ERROR(channel_.Receive(chunk, kChunk, Deadline()));
  }
  const auto committed =
      slots.Commit(step, static_cast<uint64_t>(generation), static_cast<int>(world_size));
  return Answer(committed.ok() ? StatusCode::kOk : StatusCode::kResourceExhausted);
}

Status PartnerLink::Answer(StatusCode code) {
  std::array<int64_t, 1> answer = {static_cast<int64_t>(code)};
  return channel_.Send(BufferOf(answer), kAnswer, Deadline());
}

Result<StatusCode> PartnerLink::HearAnswer() {
  std::array<int64_t, 1> answer = {};
  RETURN_IF_ERROR(channel_.Receive(BufferOf(answer), kAnswer, Deadline()));
  return static_cast<StatusCode>(answer[0]);
}

}  // namespace cadre::memory
