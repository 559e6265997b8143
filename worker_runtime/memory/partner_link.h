// One rank's states on their way to the rank that keeps them, over a connection of these two.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_PARTNER_LINK_H_
#define CADRE_WORKER_RUNTIME_MEMORY_PARTNER_LINK_H_

#include <chrono>

#include "base/time.h"
#include "cadre/status.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/files/slot_file.h"
#include "worker_runtime/sockets/message_channel.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::memory {

// A partner that takes, or gives, nothing for so long is given up.
inline constexpr std::chrono::nanoseconds kPartnerPatience = std::chrono::minutes(1);

// One thread at a time, but for Stop(). After UNAVAILABLE, DEADLINE_EXCEEDED or INVALID_ARGUMENT
// nothing goes over it any more.
class PartnerLink {
 public:
  PartnerLink(wire::Connection connection, int own_rank, int peer,
              std::chrono::nanoseconds patience = kPartnerPatience);

  // Returns when the partner has all of it. `state` must not change meanwhile. RESOURCE_EXHAUSTED:
  // the partner has no room for it; the next one may be sent.
  Status Send(const SlotLabel& label, const char* state);
  // Waits for the next state, however long, and until it is whole in `slots`. What there is no room
  // for is left out.
  Status Receive(MemorySlots& slots);

  // Ends what runs; any thread.
  void Stop();

 private:
  MonoTime Deadline() const;
  Status Answer(StatusCode code);
  Result<StatusCode> HearAnswer();

  const wire::Connection connection_;
  const int peer_;
  const std::chrono::nanoseconds patience_;
  const sockets::MessageChannel channel_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_PARTNER_LINK_H_
