// Gloo's transport with a way out of every wait. Gloo itself can only give up when its timeout has
// passed, and misses that a peer died in the middle of a message. This wraps its buffers: a wait
// ends when the context is broken, by a deadline for the whole operation, and says which rank it
// was for.
#ifndef CADRE_WORKER_RUNTIME_GLOO_WATCHED_TRANSPORT_H_
#define CADRE_WORKER_RUNTIME_GLOO_WATCHED_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "gloo/transport/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace cadre::gloo {

class WatchedBuffer;

// Thread safe.
class WatchedContext : public ::gloo::transport::Context {
 public:
  explicit WatchedContext(std::shared_ptr<::gloo::transport::Context> inner);

  std::unique_ptr<::gloo::transport::Pair>& getPair(int rank) override;
  std::unique_ptr<::gloo::transport::Pair>& createPair(int rank) override;
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                        size_t bytes) override;

  // A buffer whose waits have a deadline of their own.
  std::unique_ptr<::gloo::transport::UnboundBuffer> CreateBuffer(void* data, size_t bytes,
                                                                 MonoTime deadline);

  // For the waits that begin from now on.
  void SetDeadline(MonoTime deadline);

  // Asked why an exchange with `ranks` failed when all that is known here is `guess`; may only take
  // its time if `may_wait`. Before the first wait.
  using Explanation = std::function<absl::Status(const std::set<int>& ranks,
                                                 const absl::Status& guess, bool may_wait)>;
  void SetExplanation(Explanation explanation) { explanation_ = std::move(explanation); }

  // Ends all waits, now and later, and closes the connections so that the other ranks notice too.
  // The first reason stays.
  void Break(const absl::Status& reason);
  // OK until then.
  absl::Status broken() const;

  // For a thread that looks in now and then while an operation runs: breaks the context with
  // UNAVAILABLE if a rank that has been waited for since the last look is gone, and was so then.
  // Others may go: they may have done their part. Costs a few bytes on the wire and in the peer's
  // memory for each wait that lasts as long.
  void CheckAwaitedRanks();

 private:
  friend class WatchedBuffer;

  void Register(WatchedBuffer* buffer);
  void Unregister(WatchedBuffer* buffer);
  MonoTime deadline() const;
  // Around a wait; -1: none.
  void SetAwaitedRank(const WatchedBuffer* buffer, int rank);
  bool IsConnected(int rank);
  absl::Status Explained(const std::set<int>& ranks, const absl::Status& guess,
                         bool may_wait) const;
  // Breaks the context because an exchange with these ranks failed.
  void BreakForLoss(const std::set<int>& ranks, const std::string& error);
  void CloseConnections();

  const std::shared_ptr<::gloo::transport::Context> inner_;
  Explanation explanation_;
  mutable absl::Mutex mutex_;
  std::set<WatchedBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  MonoTime deadline_ ABSL_GUARDED_BY(mutex_) = MonoTime::Never();
  struct AwaitedRank {
    int rank = -1;
    uint64_t wait = 0;    // counts all waits
    bool is_old = false;  // was there at the last look
    bool was_gone = false;
  };
  uint64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<const WatchedBuffer*, AwaitedRank> awaited_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_WATCHED_TRANSPORT_H_
