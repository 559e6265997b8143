// Looks after the operations of a communicator from a thread of its own: when one takes long, the
// ranks tell each other what they are in, so that all learn at once who called something else, who
// left and who does not answer. Costs nothing while nobody waits long.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_CALL_WATCH_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_CALL_WATCH_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/status.h"
#include "worker_runtime/sockets/call_ledger.h"
#include "worker_runtime/sockets/peer_links.h"

namespace cadre::sockets {

// An operation that takes longer than this is talked about, then when it takes twice as long, and
// so on: what a stopped rank does not read must not fill its connection.
constexpr absl::Duration kStallCheckInterval = absl::Milliseconds(250);
// How long a rank waits for the others' answers at a deadline.
constexpr absl::Duration kAnswerPatience = absl::Milliseconds(500);
// How long it looks for the reason of a loss before it names what it saw itself: longer, because
// another rank may be waiting for answers.
constexpr absl::Duration kReasonPatience = absl::Seconds(2);

// Thread safe.
class CallWatch {
 public:
  struct Listener {
    // The call under way, or the next one, cannot succeed. Once or more.
    std::function<void(const Status& reason)> fail;
    // That rank's machine is out of reach: what is not here yet will not come.
    std::function<void(int peer)> lose;
  };

  // The listener is called from this one's thread, and must not wait.
  CallWatch(int rank, int size, std::unique_ptr<PeerLinks> links, Listener listener);
  ~CallWatch();

  // Around each collective, and around each message. Errors as CallLedger::Begin(); ABORTED takes
  // kExitGrace, unless a rank has died.
  Status BeginCall(absl::string_view text);
  void EndCall();
  void BeginMessage();
  void EndMessage();

  // Whether nothing is known that keeps the next call from beginning.
  bool IsUndisturbed();
  // What is known to have gone wrong so far, or why one of `ranks` will do nothing any more; OK:
  // nothing.
  Status WhyLost(const std::set<int>& ranks);

  // Why an exchange with `ranks` failed, which by itself looks like `guess`. With `may_wait` it
  // takes up to kReasonPatience, and kExitGrace; neither once this rank has left itself.
  Status Explain(const std::set<int>& ranks, const Status& guess, bool may_wait);

  // Likewise of a message from or to `peer`, which no other rank has a part in.
  Status ExplainMessage(int peer, const Status& guess);

  // Tells the others, once, that this rank's part is over: because its program wants it so, or for
  // a reason that is everybody's.
  void TellLeave();
  void TellFailure(const Status& reason);

 private:
  void Run();
  Status ExplainDeadline(const Status& guess);
  // `known` is called with the lock held.
  Status AwaitReason(const std::function<Status()>& known, const Status& guess, bool may_wait);
  void Hear(int peer, const PeerMessage& message);
  // Of who left, once it is time.
  void SayLeft();
  void AwaitLastWords(std::unique_lock<std::mutex>& lock);
  void HearEnd(int peer, LinkEnd end);
  void Arm();
  PeerMessage Statement(PeerMessage::Kind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(PeerMessage::Kind kind);
  void TellLastWord(PeerMessage::Kind kind, const Status& reason);

  const int size_;
  const Listener listener_;
  const std::unique_ptr<PeerLinks> links_;
  std::mutex mutex_;
  // Something was heard of the others, or this rank has left.
  std::condition_variable heard_;
  CallLedger ledger_ ABSL_GUARDED_BY(mutex_);
  int messages_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_left_ ABSL_GUARDED_BY(mutex_) = false;
  // When the first rank that left has had its time (last_words.h), and what is then said of it
  // where the call under way needs it.
  MonoTime left_until_ ABSL_GUARDED_BY(mutex_) = MonoTime::Never();
  Status left_ ABSL_GUARDED_BY(mutex_);
  // Whether the thread looks at the clock; it sleeps while nothing runs.
  std::atomic<bool> armed_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_CALL_WATCH_H_
