// Streams and events of the pretend GPU: a stream is a thread that does jobs in order. Beside the
// jobs it keeps which of them are ordered: by a stream, by an event that was waited for, or because
// the host has seen the end of one. What is not ordered so may happen in any order, whatever it
// does today. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_STREAMS_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_STREAMS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace cadre::pretend_gpu {

class Stream;

// Up to which job of each stream, by the stream's number.
using Moment = std::map<int, uint64_t>;

// Is never destroyed; Close() ends its thread.
class Stream {
 public:
  using Job = std::function<void()>;

  // An empty name: one by its number.
  Stream(int device, std::string name);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }
  int number() const { return number_; }
  // "stream 3 of GPU 0".
  const std::string& name() const { return name_; }

  // The number of the job: 1 for the first.
  uint64_t Push(Job job);
  // What has been pushed until now and all that is ordered before it.
  Moment Pushed() const;
  // What is pushed from now on comes after `moment`.
  void ComeAfter(const Moment& moment);

  uint64_t done() const;
  // Until that job is done.
  void WaitFor(uint64_t job) const;
  // While it is held no further job begins: for tests of what comes too early.
  void Hold(bool hold);
  // Nothing is pushed any more; its thread ends after the last job.
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

// The host has seen that all this has happened: what it pushes from now on is ordered after it.
void HostHasSeen(const Moment& moment);
// Whether that job comes before what is pushed to `stream` now.
bool ComesBefore(const Stream& earlier, uint64_t job, const Stream& stream);

// As CUDA has it: waiting is for the latest Record() at that time; never recorded: has happened.
class Event {
 public:
  explicit Event(int device) : device_(device) {}

  int device() const { return device_; }
  void Record(Stream& stream);
  // What `stream` is given from now on waits.
  void MakeWait(Stream& stream) const;
  bool Happened() const;
  void Wait() const;
  bool recorded() const;
  // Has happened.
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

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_STREAMS_H_
