// Work of the cluster agent that may take for ever: on users' files, and in a user database that is
// on the network. The agent's loop gives it away and is answered later, within a limit. What has
// the same key is done by one thread and in order; other keys' threads do not wait for it. The
// loop's thread.
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

// Keys that have a thread.
inline constexpr size_t kFileThreadsMax = 64;

class FileCalls {
 public:
  // Runs on the loop's thread.
  using Then = std::function<void()>;
  struct Call {
    // Runs on the key's thread, must own what it uses, and gives what is to be done about it.
    std::function<Then()> work;
    // Instead of that, once nothing of this key has been done for `limit`: who only waits for its
    // turn is not late. What comes of the work later is dropped.
    Then late;
    absl::Duration limit;
  };

  // `most`: calls that may be under way.
  explicit FileCalls(size_t most);

  // False: there are too many, and nothing will run.
  bool Start(const std::string& key, Call call, MonoTime now);
  // Whether what is given away now would wait behind something that stands still.
  bool StandsStill(const std::string& key, MonoTime now) const;

  // Readable when there is something for Handle.
  int fd() const { return news_->get(); }
  void Handle(MonoTime now);
  MonoTime NextDeadline() const;

  // At the end: waits a moment for what is under way.
  void Drain();

 private:
  struct Result {
    std::atomic<bool> done{false};
    Then then;
  };
  struct Lane {
    FileThread thread{FileThread::Options()};
    MonoTime got_on;  // when it was seen last that something was done
  };
  struct Waiting {
    MonoTime Until() const { return std::max(since, lane->got_on) + limit; }

    std::shared_ptr<Result> result;
    std::shared_ptr<Lane> lane;
    MonoTime since;
    absl::Duration limit;
    Then late;
  };
  // nullptr: there are too many.
  std::shared_ptr<Lane> LaneOf(const std::string& key);

  const size_t most_;
  const std::shared_ptr<ScopedFd> news_;
  std::map<std::string, std::shared_ptr<Lane>> lanes_;
  std::list<Waiting> waiting_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_FILE_CALLS_H_
