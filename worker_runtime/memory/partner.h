// Keeps this rank's newest state on the next node too, and the states of ranks of the node before
// in this one's folder, on threads of its own.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_PARTNER_H_
#define CADRE_WORKER_RUNTIME_MEMORY_PARTNER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/partner_link.h"
#include "worker_runtime/memory/partner_meeting.h"

namespace cadre::memory {

// One state is whole while the next one comes: whoever is in a step has its last one there.
inline constexpr int kSlotsOfACopy = 2;

// Send(), Settle() and TakeProblem() are called by one thread at a time.
class Partner {
 public:
  // Begins to connect. All ranks make one at about the same time, each as often as the others.
  // `worker` must outlive it; `timeout` is for connecting.
  Partner(Worker& worker, std::string directory, std::chrono::nanoseconds timeout);
  // Gives up what runs.
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  // Begins to send what lies in that file, which must not change until Settle() has returned.
  // Waits for the last one.
  void Send(const SlotLabel& label, std::string path);
  // Until the last state is with the partner, or will not get there.
  void Settle();
  // What went wrong since the last state that came through, said once.
  Status TakeProblem();
  // Once connected.
  std::optional<Neighbours> neighbours();

 private:
  struct Job {
    SlotLabel label;
    std::string path;
  };

  void Run();
  Status Connect();
  // Connects with `sender` and keeps what it sends, until the connection ends.
  void Keep(int sender, int64_t opening, const Waiting& waiting);
  Status SendOne(const Job& job);
  void EndSend(const Status& status);
  Status CheckGoesOn();
  std::optional<Job> NextJob();
  // False where it is to stop already.
  bool Add(const std::shared_ptr<PartnerLink>& link);

  Worker& worker_;
  const std::string directory_;
  const std::chrono::nanoseconds timeout_;
  // Of the sending thread.
  std::shared_ptr<PartnerLink> to_keeper_;
  Status link_status_;
  std::vector<std::thread> keepers_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Job> job_ ABSL_GUARDED_BY(mutex_);
  bool is_sending_ ABSL_GUARDED_BY(mutex_) = false;
  Status last_ ABSL_GUARDED_BY(mutex_);
  bool is_said_ ABSL_GUARDED_BY(mutex_) = true;
  std::optional<Neighbours> neighbours_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PartnerLink>> links_ ABSL_GUARDED_BY(mutex_);
  // Last, so that it sees all of the above.
  std::thread thread_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_PARTNER_H_
