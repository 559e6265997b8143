// Memory of the pretend GPUs: programs hold addresses at which nothing can be read or written, so
// that a touch by the host is a SIGSEGV; the streams use the same memory at another address.
// Nothing is used twice: what is freed stays unusable. New memory is full of 0xff, which is NaN in
// every floating type. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MEMORY_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "worker_runtime/testing/pretend_gpu/streams.h"

namespace cadre::pretend_gpu {

// Null: there is not that much. `device` has CADRE_PRETEND_GPU_MIB of it, 16384 where that is
// unset.
void* AllocateOnDevice(int device, size_t bytes);

// Whether the address was ever one of a GPU.
bool IsOnDevice(const void* address);
// Why [address, address + bytes) is not memory of `device`; empty: it is. -1 is any device.
std::string WhyNotOnDevice(const void* address, size_t bytes, int device);
// Where streams find it.
char* AsDeviceSeesIt(const void* address);

// Memory that a job uses.
struct Use {
  const void* address = nullptr;
  size_t bytes = 0;
  bool writes = false;
};
// How a collective's jobs differ: they may wait for other ranks without end, unless the
// communicator has ended.
using Ended = std::shared_ptr<const std::atomic<bool>>;

// Notes that job `number` of `stream` uses that memory; `what` names the job. Reports a use that is
// not ordered after an earlier one of the same bytes, where one of both writes. `ended` is null for
// what is no collective.
void NoteUse(const Use& use, const Stream& stream, uint64_t number, const std::string& what,
             const Ended& ended);

// Waits for what still uses it, as CUDA does; but a collective that does is reported, because
// waiting for other ranks here can wait for ever. False: no such memory.
bool FreeOnDevice(void* address);

// Host memory that streams copy to and from while the host goes on. Null: none left.
void* AllocatePinned(size_t bytes);
bool FreePinned(void* address);
bool IsPinned(const void* address);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MEMORY_H_
