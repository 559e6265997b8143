// Runs the cluster agent's calls that may block for ever: on users' files, and on a user database
// that is on the network. The agent's loop posts them and gets each result, or a timeout, later.
// Calls with the same key run in order on one thread; threads of other keys do not wait for it. To
// be used from the loop's thread.
#ifndef CADRE_AGENT_CLUSTER_FILE_CALLS_H_
#define CADRE_AGENT_CLUSTER_FILE_CALLS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"
#include "base/time.h"

namespace cadre::agent {

// The maximum number of keys that have a thread.
inline constexpr size_t kFileThreadsMax = 64;

class FileCalls {
 public:
  // The continuation; runs on the loop's thread.
  using Then = std::function<void()>;
  struct Call {
    // Runs on the key's thread, must own what it uses, and returns the continuation.
    std::function<Then()> work;
    // Runs instead of that continuation if no call of this key has completed for `limit`; time
    // spent queued behind calls that complete does not count. A later result of `work` is dropped.
    Then late;
    absl::Duration limit;
  };

  // `most`: the maximum number of pending calls.
  explicit FileCalls(size_t most);

  // Returns false if too many are pending; then nothing will run.
  bool Start(const std::string& key, Call call, MonoTime now);
  // Whether a call posted now would queue behind one that does not return.
  bool IsHung(const std::string& key, MonoTime now) const;

  // Readable when Handle has results to process.
  int fd() const { return ready_event_->get(); }
  void Handle(MonoTime now);
  MonoTime NextDeadline() const;

  // Waits briefly for pending calls; called when the agent ends.
  void Drain();

 private:
  struct Result {
    std::atomic<bool> done{false};
    Then then;
  };
  struct Lane {
    FileThread thread{FileThread::Options()};
    MonoTime got_on;  // when a call of this lane was last seen to have completed
  };
  struct Waiting {
    MonoTime Until() const { return std::max(since, lane->got_on) + limit; }

    std::shared_ptr<Result> result;
    std::shared_ptr<Lane> lane;
    MonoTime since;
    absl::Duration limit;
    Then late;
  };
  // Returns nullptr if too many keys have a thread.
  std::shared_ptr<Lane> LaneOf(const std::string& key);

  const size_t most_;
  const std::shared_ptr<ScopedFd> ready_event_;
  std::map<std::string, std::shared_ptr<Lane>> lanes_;
  std::list<Waiting> waiting_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_FILE_CALLS_H_
