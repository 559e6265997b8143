// How much of the server each caller takes at once: calls under way, and bytes that it was answered
// and has not read. Each user has its own limits, so that none of them takes the server's memory
// from the others; administrators have none. Thread safe.
#ifndef CADRE_RENDEZVOUS_SERVICE_CALLER_LOADS_H_
#define CADRE_RENDEZVOUS_SERVICE_CALLER_LOADS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/time.h"

namespace cadre::service {

struct CallerLimits {
  // Calls of a user: asked, and not answered or not read.
  size_t calls = 128;
  // Unread answers of a user. One may be larger where there is no other.
  size_t unread_bytes = 64 << 20;
  // Of what its nodes' streams have been told and have not read: each of 4,096 nodes hears of all
  // at once.
  size_t stream_bytes = size_t{1} << 30;
  // A call whose answer is not read for so long is ended.
  absl::Duration unread_for = absl::Minutes(1);
};

class CallerLoads {
 public:
  // `log` takes lines of the server's log, and may be null.
  CallerLoads(const CallerLimits& limits, std::function<void(const std::string&)> log)
      : limits_(limits), log_(std::move(log)) {}

  const CallerLimits& limits() const { return limits_; }

  // One more call, or so many bytes more that go out. RESOURCE_EXHAUSTED names the caller and the
  // limit, and nothing is counted.
  absl::Status BeginCall(const Bearer& bearer);
  absl::Status AddUnread(const Bearer& bearer, size_t bytes);
  void EndCall(const Bearer& bearer);
  void RemoveUnread(const Bearer& bearer, size_t bytes);
  // The same of nodes' streams.
  absl::Status AddStreamed(const Bearer& bearer, size_t bytes);
  void RemoveStreamed(const Bearer& bearer, size_t bytes);

  // A line for the log: something of the caller's was closed because it does not read. Of each
  // caller once a minute.
  void SayClosed(const Bearer& bearer, const std::string& what);

 private:
  struct Load {
    size_t calls = 0;
    size_t unread = 0;
    size_t streamed = 0;
  };
  using Loads = std::map<std::string, Load>;
  void ForgetIfNone(Loads::iterator load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallerLimits limits_;
  const std::function<void(const std::string&)> log_;
  absl::Mutex mutex_;
  // Of those who have any, by name.
  Loads loads_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, MonoTime> said_ ABSL_GUARDED_BY(mutex_);
};

// "user ann", "the read-only tokens".
std::string CallerText(const Bearer& bearer);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_CALLER_LOADS_H_
