// Streams and events of the pretend device: a stream is a thread with a queue of jobs.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace cadre::pretend {

// Any thread. Is never destroyed: streams live as long as the process, as a device's do.
class Queue {
 public:
  using Job = std::function<void()>;

  Queue();

  void Push(Job job);
  // Whether all jobs are done.
  bool idle() const;
  // Until what was pushed before is done. Throws what a job threw first, now and ever after, as
  // CUDA's sticky errors.
  void Synchronize();

  // While it is held, no further job begins.
  void Hold(bool hold);
  uint64_t done() const;

 private:
  void Run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  bool held_ = false;
  std::string error_;
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
    uint64_t done = 0;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  uint64_t version_ = 0;
};

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_QUEUE_H_
