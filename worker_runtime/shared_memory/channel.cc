#include "worker_runtime/shared_memory/channel.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/shared_memory/futex.h"

namespace cadre::shared_memory {
namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kSlots = 2;

bool Reached(uint32_t count, uint32_t least) { return static_cast<int32_t>(count - least) >= 0; }

}  // namespace

Channel::Channel(Peers* peers, int peer, char* memory, size_t bytes)
    : peers_(*peers),
      peer_(peer),
      header_(*reinterpret_cast<Header*>(memory)),
      slots_(memory + kLine),
      slot_bytes_((bytes - kLine) / kSlots / kLine * kLine) {}

void Channel::Count(Word& word) {
  word.count.fetch_add(1, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) != 0) FutexWakeAll(&word.count);
}

Status Channel::WaitUntil(Word& word, uint32_t least, const char* what, MonoTime deadline) {
  for (int spins = peers_.spins(); spins > 0; --spins) {
    if (Reached(word.count.load(std::memory_order_acquire), least)) return OkStatus();
    PauseCore();
  }
  while (true) {
    word.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = word.count.load(std::memory_order_seq_cst);
    if (!Reached(seen, least)) FutexWait(&word.count, seen, kLivenessMillis);
    word.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (Reached(word.count.load(), least)) return OkStatus();
    const bool is_late = MonoNow() >= deadline;
    Status status = peers_.Check(peer_, is_late);
    if (!status.ok()) {
      // All that it did before it went counts.
      if (Reached(word.count.load(), least)) return OkStatus();
      peers_.GiveUpFor(peer_, status);
      return status;
    }
    if (!is_late) continue;
    peers_.GiveUp(Reason::kLate, peer_);
    return DeadlineExceededError(absl::StrCat("rank ", peer_, " ", what, " in time"));
  }
}

Status Channel::Send(const Buffer& buffer, int tag, MonoTime deadline) {
  const size_t bytes = buffer.count * SizeOf(buffer.type);
  const char* const data = static_cast<const char*>(buffer.data);
  const Message message = {buffer.count, tag, buffer.type};
  size_t done = 0;
  bool first = true;
  do {
    const uint32_t index = header_.sent.count.load();
    RETURN_IF_ERROR(
        WaitUntil(header_.taken, index - (kSlots - 1), "did not take a message", deadline));
    char* to = Slot(index);
    size_t room = slot_bytes_;
    if (first) {
      memcpy(to, &message, sizeof(message));
      to += kLine;
      room -= kLine;
      first = false;
    }
    const size_t piece = std::min(room, bytes - done);
    if (piece > 0) memcpy(to, data + done, piece);
    done += piece;
    Count(header_.sent);
  } while (done < bytes);
  return OkStatus();
}

Status Channel::Receive(const Buffer& buffer, int tag, MonoTime deadline) {
  const size_t bytes = buffer.count * SizeOf(buffer.type);
  char* const data = static_cast<char*>(buffer.data);
  size_t done = 0;
  bool first = true;
  do {
    const uint32_t index = header_.taken.count.load();
    RETURN_IF_ERROR(WaitUntil(header_.sent, index + 1, "did not send a message", deadline));
    const char* from = Slot(index);
    size_t room = slot_bytes_;
    if (first) {
      Message message;
      memcpy(&message, from, sizeof(message));
      if (message.count != buffer.count || message.type != buffer.type || message.tag != tag) {
        return InvalidArgumentError(absl::StrCat(
            "rank ", peers_.rank(), " waits for ", buffer.count, " ", backend::Name(buffer.type),
            " with tag ", tag, ", but rank ", peer_, " sent ", message.count, " ",
            backend::Name(message.type), " with tag ", message.tag));
      }
      from += kLine;
      room -= kLine;
      first = false;
    }
    const size_t piece = std::min(room, bytes - done);
    if (piece > 0) memcpy(data + done, from, piece);
    done += piece;
    Count(header_.taken);
  } while (done < bytes);
  return OkStatus();
}

}  // namespace cadre::shared_memory
