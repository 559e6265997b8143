// The pretend GPUs' memory, streams and events, and the mistakes that a program makes with them.
// Thread safe.
//
// Programs hold addresses of memory that can be neither read nor written, so that an access by the
// host raises SIGSEGV; the streams map the same memory at another address. Addresses are never
// reused: freed memory stays unusable. New memory is filled with 0xff, which is NaN in every
// floating type.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MEMORY_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MEMORY_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace cadre::pretend_gpu {

// Streams and events of the pretend GPU. A stream is a thread that runs jobs in order. The streams
// also track which jobs are ordered: by a stream, by an event that was waited for, or because the
// host has seen the end of one. Jobs that are not ordered may run in any order on a real GPU,
// whatever their order is here. Thread safe.
class Stream;

// A vector clock: the last job of each stream that is included, by the stream's number.
using Moment = std::map<int, uint64_t>;

// A Stream is never destroyed; Close() ends its thread.
class Stream {
 public:
  using Job = std::function<void()>;

  // A stream with an empty name is named by its number.
  Stream(int device, std::string name);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }
  int number() const { return number_; }
  // Returns, for example, "stream 3 of GPU 0".
  const std::string& name() const { return name_; }

  // Returns the number of the job; the first is 1.
  uint64_t Push(Job job);
  // Returns all that has been pushed so far and everything that is ordered before it.
  Moment Pushed() const;
  // Jobs that are pushed from now on are ordered after `moment`.
  void ComeAfter(const Moment& moment);

  uint64_t done() const;
  // Waits until that job is done.
  void WaitFor(uint64_t job) const;
  // While the stream is held, it begins no further job; tests use this to find work that runs too
  // early.
  void Hold(bool hold);
  // No job may be pushed afterwards; the stream's thread ends after the last one.
  void Close();

 private:
  void Run();

  const int device_;
  const int number_;
  const std::string name_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Job> jobs_;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  bool held_ = false;
  bool closed_ = false;
  Moment after_;
};

// Records that the host has seen all of `moment` happen: what the host pushes from now on is
// ordered after it.
void HostHasSeen(const Moment& moment);
// Whether that job is ordered before what is pushed to `stream` now.
bool ComesBefore(const Stream& earlier, uint64_t job, const Stream& stream);

// Events as in CUDA: a wait is for the latest Record() at that time; an event that was never
// recorded counts as having happened.
class Event {
 public:
  explicit Event(int device) : device_(device) {}

  int device() const { return device_; }
  void Record(Stream& stream);
  // Jobs that are pushed to `stream` from now on wait for the event.
  void MakeWait(Stream& stream) const;
  bool Happened() const;
  void Wait() const;
  bool recorded() const;
  // Returns when it happened; the event must have happened.
  std::chrono::steady_clock::time_point time() const;

 private:
  struct Mark {
    std::mutex mutex;
    std::condition_variable changed;
    bool happened = false;
    std::chrono::steady_clock::time_point time;
    Moment moment;
  };
  std::shared_ptr<Mark> mark() const;

  const int device_;
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
};

// Mistakes are errors of a program in its use of the pretend GPU whose effect on a real GPU is
// undefined: the program may work, hang or corrupt memory.

// Prints the mistake; from the first one on every CUDA call fails with its text, as after an error
// of a real device.
void ReportMistake(const std::string& text);

// Returns the first mistake, or "" if there was none.
std::string FirstMistake();
bool HasMistake();

// Returns null if not enough is free. Each device has CADRE_PRETEND_GPU_MIB MiB, 16384 if unset.
void* AllocateOnDevice(int device, size_t bytes);

// Whether the address is, or ever was, GPU memory.
bool IsOnDevice(const void* address);
// Returns why [address, address + bytes) is not memory of `device`, or "" if it is; -1 means any
// device.
std::string WhyNotOnDevice(const void* address, size_t bytes, int device);
// Returns the address at which streams access it.
char* AsDeviceSeesIt(const void* address);

// Memory that a job uses.
struct Use {
  const void* address = nullptr;
  size_t bytes = 0;
  bool writes = false;
};
// Set when a collective's communicator has ended. Until then its jobs, unlike others, may wait for
// other ranks without a limit.
using Ended = std::shared_ptr<const std::atomic<bool>>;

// Records that job `number` of `stream` uses that memory; `what` names the job. Reports a mistake
// if an earlier use of the same bytes is not ordered before this one and one of the two writes.
// `ended` is null for jobs that are not collectives.
void NoteUse(const Use& use, const Stream& stream, uint64_t number, const std::string& what,
             const Ended& ended);

// Waits for jobs that still use the memory, as CUDA does. If one is a collective, a mistake is
// reported, because waiting for other ranks here may never end. Returns false for unknown memory.
bool FreeOnDevice(void* address);

// Allocates host memory that streams can copy to and from asynchronously. Returns null if none is
// left.
void* AllocatePinned(size_t bytes);
bool FreePinned(void* address);
bool IsPinned(const void* address);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MEMORY_H_
