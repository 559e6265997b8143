// Watches a communicator's operations on its own thread. When one takes long, the ranks report to
// each other, over connections of their own, which call they are in, so that all learn at the same
// time which rank made a different call, left or does not answer. It costs nothing while no
// operation takes long.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_CALL_WATCH_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_CALL_WATCH_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/status.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// The size of a call's description in bytes. A longer one is cut and ends with a hash of all of it.
inline constexpr size_t kMaxCallText = 200;
// A rank remembers this many of its own calls.
inline constexpr size_t kRememberedCalls = 64;

struct CallStatement {
  uint64_t call = 0;      // the last one begun, counted from 1
  uint64_t finished = 0;  // the last one finished
  std::string text;       // describes `call`
};

// Records which collective each rank of a communicator is in, as the ranks report it, and derives
// which rank made a different call, which one left, and which one is missing. Pure.
class CallLedger {
 public:
  CallLedger(int rank, int size) : rank_(rank), peers_(size) {}

  // This rank begins its next call, such as "all-reduce (sum) of 4 float32".
  //   INVALID_ARGUMENT  another rank has reported a different call under this number
  //   ABORTED           a rank left before this call
  Status Begin(absl::string_view text);
  void End() { own_.finished = own_.call; }
  const CallStatement& own() const { return own_; }
  bool is_running() const { return own_.finished < own_.call; }

  // Records what a peer reports. INVALID_ARGUMENT: as above; it then stays the failure().
  Status OnMessage(int peer, CallStatement statement);
  // The peer aborted its part after `finished` calls. ABORTED: this rank's running call needs it.
  Status OnLeave(int peer, uint64_t finished);
  // The peer failed with `reason`, which becomes every rank's failure unless there is one already.
  Status OnFailure(int peer, Status reason);
  // All operations fail with this from now on. OK: nothing has failed.
  const Status& failure() const { return failure_; }
  // Called when the peer's connection has ended, after which the peer answers nothing more.
  // `altered`: this rank closed the connection, because the received data were not what the peer
  // had sent.
  void OnConnectionEnd(int peer, bool altered = false);
  // Returns true if the connection to a rank ended that had not left.
  bool has_any_died() const { return has_any_died_; }
  // Returns true if no rank has left, died or failed, so that the next call may begin.
  bool is_undisturbed() const { return failure_.ok() && !has_any_died_ && !has_any_left_; }

  // Explains why an exchange with `ranks` ended: the failure that a rank reported, or which of
  // `ranks` (or else of all) left or died. OK: nothing is known yet.
  Status ExplainLoss(const std::set<int>& ranks) const;

  // Explains why a message from or to `peer` failed: the failure that a rank reported, or that
  // `peer` left or died, whatever happened to other ranks. OK: nothing is known yet.
  Status ExplainMessageLoss(int peer) const;

  // Called before the peers are asked which call they are in.
  void ForgetAnswers();
  bool HaveAllAnswered() const;
  // Describes the ranks that have not entered the running call, as far as their answers tell; empty
  // if none is known.
  std::string Missing() const;

 private:
  struct Peer {
    CallStatement reported;
    bool has_reported = false;
    bool has_answered = false;
    bool has_left = false;  // after reported.finished
    bool is_gone = false;
    bool is_altered = false;
  };

  Status Left(int peer) const;
  // Returns OK if the peer is connected, or if it had left before its connection ended.
  Status Gone(int peer) const;
  Status Different(uint64_t call) const;
  // Returns the text of this rank's call; empty if it is forgotten or has not begun.
  const std::string& TextOf(uint64_t call) const;

  const int rank_;
  std::vector<Peer> peers_;
  CallStatement own_;
  std::array<std::string, kRememberedCalls> texts_;
  Status failure_;
  bool has_any_died_ = false;
  bool has_any_left_ = false;
};

// What a rank reports to a peer.
struct PeerMessage {
  enum class Kind : uint32_t {
    kCall = 1,  // the call that this rank is in
    kQuestion,  // the same, and a request for the receiver's call
    kLeave,     // this rank aborted its part
    kFailure    // this rank failed with `code` and `text`
  };
  Kind kind = Kind::kCall;
  int32_t code = 0;
  uint64_t call = 0;
  uint64_t finished = 0;
  char text[488] = {};
};
static_assert(sizeof(PeerMessage) == 512, "as it goes over the wire");

enum class LinkEnd {
  kClosed,      // the peer closed it, or its process ended
  kOutOfReach,  // the connection broke while the peer's process may run on
  kAltered      // the received data were altered on their way
};

// A small TCP connection between every two ranks, beside those that carry a communicator's data.
// Reports on it never queue behind data, and its end shows that a process has ended.
class PeerLinks {
 public:
  // The connections are indexed by rank; this rank's own one is empty.
  explicit PeerLinks(std::vector<wire::Connection> connections);
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // Never blocks. Any thread. A message is dropped if the previous one has not been sent yet (the
  // peer is stopped), but one with `is_last` is kept until it can be sent.
  void Send(int peer, const PeerMessage& message, bool is_last = false);

  struct Listener {
    std::function<void(int peer, const PeerMessage& message)> on_message;
    // Called once for each peer.
    std::function<void(int peer, LinkEnd end)> on_end;
  };
  // Waits until a peer sent something, Wake() was called or `timeout` has passed. One thread.
  void Poll(absl::Duration timeout, const Listener& listener);
  // Ends a running Poll(). Any thread.
  void Wake();

 private:
  struct Link {
    wire::Connection connection;
    std::string incoming;  // only for the polling thread
    std::string outgoing;
  };

  void Flush(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns 0, or the errno value with which the connection ended.
  int Receive(int peer, const Listener& listener);

  const ScopedFd wake_;  // an eventfd
  absl::Mutex mutex_;
  std::vector<Link> links_;  // connections end only in Poll()
};

// A rank reports its call when it has taken this long, then each time that has doubled. The
// interval grows because a stopped rank does not read: the reports must not fill its connection.
constexpr absl::Duration kStallCheckInterval = absl::Milliseconds(250);
// A rank waits this long for the others' answers when its deadline has passed.
constexpr absl::Duration kAnswerTimeout = absl::Milliseconds(500);
// A rank waits this long for the reason of a loss before it reports what it saw itself. It is
// longer than kAnswerTimeout because another rank may be waiting for answers.
constexpr absl::Duration kReasonTimeout = absl::Seconds(2);

// Thread safe.
class CallWatch {
 public:
  struct Listener {
    // The running or next call cannot succeed. It may be called more than once.
    std::function<void(const Status& reason)> fail;
    // That rank's machine is unreachable: data that has not arrived yet will not come.
    std::function<void(int peer)> lose;
  };

  // The listener is called on the watch's thread and must not block.
  CallWatch(int rank, int size, std::unique_ptr<PeerLinks> links, Listener listener);
  ~CallWatch();

  // These enclose each collective and each message. Errors are those of CallLedger::Begin().
  // ABORTED is returned only after kExitGrace, unless a rank has died.
  Status BeginCall(absl::string_view text);
  void EndCall();
  void BeginMessage();
  void EndMessage();

  // Returns true if nothing is known that would keep the next call from beginning.
  bool IsUndisturbed();
  // Returns the failure known so far, or why one of `ranks` does nothing any more; OK if neither is
  // known.
  Status ExplainLoss(const std::set<int>& ranks);

  // Explains why an exchange with `ranks` failed; `guess` is what this rank saw of it. With
  // `may_wait` it takes up to kReasonTimeout, plus kExitGrace; it takes neither once this rank has
  // left.
  Status Explain(const std::set<int>& ranks, const Status& guess, bool may_wait);

  // Does the same for a message from or to `peer`, in which no other rank takes part.
  Status ExplainMessage(int peer, const Status& guess);

  // Tells the other ranks, once, that this rank takes no further part: ReportLeave() if its program
  // ended it, ReportFailure() for a reason that applies to all ranks.
  void ReportLeave();
  void ReportFailure(const Status& reason);

 private:
  void Run();
  Status ExplainDeadline(const Status& guess);
  // `known` is called with the lock held.
  Status AwaitReason(const std::function<Status()>& known, const Status& guess, bool may_wait);
  void OnMessage(int peer, const PeerMessage& message);
  // Reports the rank that left to the listener once left_until_ has passed or a rank has died.
  void ReportLeftRank();
  void AwaitFinalReports(std::unique_lock<std::mutex>& lock);
  void OnConnectionEnd(int peer, LinkEnd end);
  void Arm();
  PeerMessage Statement(PeerMessage::Kind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendReport(PeerMessage::Kind kind);
  void SendFinalReport(PeerMessage::Kind kind, const Status& reason);

  const int size_;
  const Listener listener_;
  const std::unique_ptr<PeerLinks> links_;
  std::mutex mutex_;
  // Notified when another rank reported something, or when this rank has left.
  std::condition_variable peer_reported_;
  CallLedger ledger_ ABSL_GUARDED_BY(mutex_);
  int messages_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_left_ ABSL_GUARDED_BY(mutex_) = false;
  // When the grace period of the first rank that left ends (exit_grace.h), and the error with which
  // the running call then fails if it needs that rank.
  MonoTime left_until_ ABSL_GUARDED_BY(mutex_) = MonoTime::Never();
  Status left_ ABSL_GUARDED_BY(mutex_);
  // Whether the thread polls with a timeout. It sleeps without one while no operation runs.
  std::atomic<bool> armed_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_CALL_WATCH_H_
