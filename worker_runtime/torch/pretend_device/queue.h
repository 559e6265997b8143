// Streams and events of the pretend device: a stream is a thread with a queue of jobs, and a clock
// of its own. What a job costs is told with it, and whoever waits for an event has its time at
// least: what comes out depends on which work waits for which, and not on the machine.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace cadre::pretend {

// Any thread. Is never destroyed: streams live as long as the process, as a device's do.
class Queue {
 public:
  using Job = std::function<void()>;

  Queue();

  // `seconds` of the stream's time go by with it.
  void Push(Job job, double seconds = 0);
  // Whether all jobs are done. Counts as a wait, as does the next: who asks again and again waits.
  bool idle() const;
  // Until what was pushed before is done. Throws what a job threw first, now and ever after, as
  // CUDA's sticky errors.
  void Synchronize();
  // How often the host has waited for this stream or for an event in it.
  uint64_t waits() const { return waits_; }
  void CountWait() const { ++waits_; }

  // The stream's time, in seconds; for its own jobs.
  double now() const { return now_; }
  void AdvanceTo(double time) { now_ = std::max(now_, time); }

  // While it is held, no further job begins.
  void Hold(bool hold);
  uint64_t done() const;

 private:
  struct Entry {
    Job job;
    double seconds = 0;
  };

  void Run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> jobs_;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  bool held_ = false;
  std::string error_;
  mutable std::atomic<uint64_t> waits_{0};
  // Of the stream's thread.
  double now_ = 0;
};

// As c10's device interface has them: each Record() makes a new version of the event, and waiting
// is for the version of then.
class Event {
 public:
  void Record(Queue& queue);
  // What is pushed from now on waits.
  void Block(Queue& queue) const;
  bool done() const;
  void Synchronize() const;

 private:
  // Outlives the event: queues refer to it.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    // When a stream came to it, by version.
    std::map<uint64_t, double> times;

    bool Passed(uint64_t version) const { return version == 0 || times.count(version) > 0; }
  };

  void CountWait() const;

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  uint64_t version_ = 0;
  const Queue* recorded_on_ = nullptr;
};

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_
