// Messages from one rank to another through a little memory that both see: the sender fills slots,
// the receiver empties them.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_CHANNEL_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/status.h"
#include "worker_runtime/shared_memory/peers.h"

namespace cadre::shared_memory {

// One end. One thread at a time.
class Channel {
 public:
  // `memory`: zeroed at first, the same for both ends. `peers` must outlive this.
  Channel(Peers* peers, int peer, char* memory, size_t bytes);

  // Errors as of RankBarrier::WaitForAll, and INVALID_ARGUMENT: the message is not what the receive
  // asks for.
  Status Send(const Buffer& buffer, int tag, MonoTime deadline);
  Status Receive(const Buffer& buffer, int tag, MonoTime deadline);

 private:
  struct Word {
    std::atomic<uint32_t> count;
    std::atomic<uint32_t> sleepers;
  };
  struct Header {
    Word sent;   // slots filled
    Word taken;  // slots emptied
  };
  struct Message {
    uint64_t count;
    int32_t tag;
    DataType type;
  };

  char* Slot(uint32_t index) const { return slots_ + (index % 2) * slot_bytes_; }
  // Until `word` has counted to `least`.
  Status WaitUntil(Word& word, uint32_t least, const char* what, MonoTime deadline);
  static void Count(Word& word);

  Peers& peers_;
  const int peer_;
  Header& header_;
  char* const slots_;
  const size_t slot_bytes_;
};

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_CHANNEL_H_
