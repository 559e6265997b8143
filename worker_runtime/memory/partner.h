// Keeps a copy of each rank's newest state on the next node: which ranks are partners, how they
// connect, and how states are sent and stored. A state that its node has lost is still there.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_PARTNER_H_
#define CADRE_WORKER_RUNTIME_MEMORY_PARTNER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/sockets/messages.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::memory {

// Decides which rank of the next node keeps a copy of this rank's state, and whose copies this rank
// keeps. Pure.
struct Neighbours {
  // This rank sends its states to this one.
  int keeper = 0;
  // These ranks send their states to this one.
  std::vector<int> kept;
  // The `kept_count` ranks from `first_kept` on send their states to this node.
  int first_kept = 0;
  int kept_count = 0;
};

// The next node keeps a node's states, and the first node keeps the last one's. A rank's state goes
// to the rank with its local rank, modulo `next_size` if the next node has fewer ranks. There must
// be more than one node. The sizes are those of the nodes after and before this one.
Neighbours NeighboursOf(const WorkerPlace& place, int next_size, int previous_size);

// Bounds a wait. `check` is called every second, and an error that it returns ends the wait.
struct Waiting {
  MonoTime deadline;
  std::function<Status()> check;
};

// Every rank of every node must call this.
Result<Neighbours> FindNeighbours(Worker& worker, const Waiting& waiting);

// Connects `sender` with `keeper`. Both call it with the same `opening`, a number that differs for
// each connection of the two.
Result<wire::Connection> MeetPartner(Worker& worker, int sender, int keeper, int64_t opening,
                                     const Waiting& waiting);

// The link fails if the partner takes or sends nothing for this long.
inline constexpr std::chrono::nanoseconds kPartnerTimeout = std::chrono::minutes(1);

// Transfers one rank's states to the rank that keeps them, over a connection of these two. Only
// Stop() may be called by a second thread. After UNAVAILABLE, DEADLINE_EXCEEDED or
// INVALID_ARGUMENT the link is unusable.
class PartnerLink {
 public:
  PartnerLink(wire::Connection connection, int own_rank, int peer,
              std::chrono::nanoseconds timeout = kPartnerTimeout);

  // Returns when the partner has the whole state, which must not change meanwhile.
  // RESOURCE_EXHAUSTED: the partner has no room for it; the next state may still be sent.
  Status Send(const SlotLabel& label, const char* state);
  // Waits for the next state without a time limit, and then until it is complete in `slots`. A
  // state for which there is no room is refused, and OK is returned.
  Status Receive(MemorySlots& slots);

  // Makes running calls fail. Any thread may call this.
  void Stop();

 private:
  MonoTime Deadline() const;
  Status Answer(StatusCode code);
  Result<StatusCode> ReceiveAnswer();

  const wire::Connection connection_;
  const int peer_;
  const std::chrono::nanoseconds timeout_;
  const sockets::MessageChannel channel_;
};

// One slot holds a complete copy while the other receives the next one, so a copy of the last step
// is there at any time.
inline constexpr int kSlotsOfACopy = 2;

// Copies this rank's newest state to the next node, and stores the states that ranks of the
// previous node send in this one's directory. Both run on threads of this object. Send(),
// AwaitSent() and TakeProblem() are called by one thread at a time.
class Partner {
 public:
  // Begins to connect. All ranks construct a Partner at about the same time and equally often.
  // `worker` must outlive this object; `timeout` bounds the connecting.
  Partner(Worker& worker, std::string directory, std::chrono::nanoseconds timeout);
  // Cancels what is running.
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  // Waits until the previous state is settled, then begins to send the one in file `path`, which
  // must not change until AwaitSent() has returned.
  void Send(const SlotLabel& label, std::string path);
  // Waits until the last state has reached the partner or has failed to.
  void AwaitSent();
  // Returns the error since the last state that was sent successfully; returns each only once.
  Status TakeProblem();
  // Returns nullopt until the neighbours are known.
  std::optional<Neighbours> neighbours();

 private:
  struct Job {
    SlotLabel label;
    std::string path;
  };

  void Run();
  Status Connect();
  // Connects with `sender` and keeps what it sends, until the connection ends.
  void ReceiveCopies(int sender, int64_t opening, const Waiting& waiting);
  Status SendOne(const Job& job);
  void EndSend(const Status& status);
  Status CheckNotStopped();
  std::optional<Job> NextJob();
  // Returns false if the object is already being destroyed.
  bool Add(const std::shared_ptr<PartnerLink>& link);

  Worker& worker_;
  const std::string directory_;
  const std::chrono::nanoseconds timeout_;
  // The sending thread owns these three.
  std::shared_ptr<PartnerLink> to_keeper_;
  Status link_status_;
  std::vector<std::thread> keepers_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Job> job_ ABSL_GUARDED_BY(mutex_);
  bool is_sending_ ABSL_GUARDED_BY(mutex_) = false;
  Status last_ ABSL_GUARDED_BY(mutex_);
  bool is_reported_ ABSL_GUARDED_BY(mutex_) = true;
  std::optional<Neighbours> neighbours_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PartnerLink>> links_ ABSL_GUARDED_BY(mutex_);
  // This is the last member, so the thread finds all the others initialized.
  std::thread thread_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_PARTNER_H_
