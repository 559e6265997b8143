#include "worker_runtime/gloo/watched_transport.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "gloo/common/error.h"
#include "worker_runtime/gloo/blocked_pipe_signal.h"

namespace cadre::gloo {

using ::gloo::transport::Pair;
using ::gloo::transport::UnboundBuffer;

namespace {

// A slot that no collective uses: Gloo's own have 1 to 8 in their top byte.
constexpr uint64_t kProbeSlot = 0xcad2ull << 40;

// Rounded up, so that a wait never ends before its deadline; and Gloo takes 0 for "forever".
std::chrono::milliseconds GlooTimeout(absl::Duration duration) {
  const absl::Duration rounded = absl::Ceil(duration, absl::Milliseconds(1));
  return std::max(absl::ToChronoMilliseconds(rounded), std::chrono::milliseconds(1));
}

}  // namespace

// One of Gloo's buffers, known to its context. Used by the thread that runs the collective;
// Interrupt by any.
class WatchedBuffer : public UnboundBuffer {
 public:
  WatchedBuffer(WatchedContext* context, std::unique_ptr<UnboundBuffer> inner,
                std::optional<MonoTime> deadline)
      : UnboundBuffer(inner->ptr, inner->size),
        context_(context),
        inner_(std::move(inner)),
        deadline_(deadline) {
    context_->Register(this);
  }
  ~WatchedBuffer() override { context_->Unregister(this); }

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    return Wait("from", source_, timeout, [this, rank](std::chrono::milliseconds left) {
      return inner_->waitRecv(rank, left);
    });
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return Wait("to", destination_, timeout, [this, rank](std::chrono::milliseconds left) {
      return inner_->waitSend(rank, left);
    });
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }

  void send(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    destination_ = rank;
    Guard([&] { inner_->send(rank, slot, offset, bytes); });
  }
  void recv(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    source_ = rank;
    Guard([&] { inner_->recv(rank, slot, offset, bytes); });
  }
  void recv(std::vector<int> ranks, uint64_t slot, size_t offset, size_t bytes) override {
    inner_->recv(std::move(ranks), slot, offset, bytes);
  }

  void Interrupt() {
    inner_->abortWaitRecv();
    inner_->abortWaitSend();
  }

 private:
  template <typename InnerWait>
  bool Wait(const char* direction, int peer, std::chrono::milliseconds timeout,
            const InnerWait& inner_wait) {
    ThrowIfBroken();
    const MonoTime deadline = deadline_.has_value() ? *deadline_ : context_->deadline();
    absl::Duration left = deadline - MonoNow();
    if (timeout.count() > 0) left = std::min(left, absl::FromChrono(timeout));
    bool completed = false;
    context_->SetAwaitedRank(this, peer);
    Guard([&] {
      try {
        completed = inner_wait(GlooTimeout(left));
      } catch (const ::gloo::IoException&) {
        if (MonoNow() >= deadline) {
          const absl::Status guess = absl::DeadlineExceededError(
              absl::StrCat("data ", direction, " rank ", peer, " did not move in time"));
          // Gloo has closed the connections by now, which must not look like somebody's loss.
          context_->SetAwaitedRank(this, -1);
          // Who is late for a message is clear; a collective may wait for somebody else.
          context_->Break(deadline_.has_value() ? guess : context_->Explained({peer}, guess, true));
        }
        throw;
      }
    });
    context_->SetAwaitedRank(this, -1);
    if (!completed) ThrowIfBroken();
    return completed;
  }

  // Turns a lost connection into the context's reason.
  template <typename Exchange>
  void Guard(const Exchange& exchange) {
    try {
      exchange();
    } catch (const ::gloo::IoException& error) {
      context_->SetAwaitedRank(this, -1);
      context_->BreakForLoss({source_, destination_}, error.what());
      throw;
    }
  }

  void ThrowIfBroken() {
    const absl::Status broken = context_->broken();
    if (!broken.ok()) throw ::gloo::IoException(broken.ToString());
  }

  WatchedContext* const context_;
  const std::unique_ptr<UnboundBuffer> inner_;
  const std::optional<MonoTime> deadline_;
  int source_ = -1;
  int destination_ = -1;
};

WatchedContext::WatchedContext(std::shared_ptr<::gloo::transport::Context> inner)
    : ::gloo::transport::Context(inner->rank, inner->size), inner_(std::move(inner)) {
  setTimeout(inner_->getTimeout());
}

std::unique_ptr<Pair>& WatchedContext::getPair(int rank) { return inner_->getPair(rank); }

std::unique_ptr<Pair>& WatchedContext::createPair(int rank) { return inner_->createPair(rank); }

std::unique_ptr<UnboundBuffer> WatchedContext::createUnboundBuffer(void* data, size_t bytes) {
  return std::make_unique<WatchedBuffer>(this, inner_->createUnboundBuffer(data, bytes),
                                         std::nullopt);
}

std::unique_ptr<UnboundBuffer> WatchedContext::CreateBuffer(void* data, size_t bytes,
                                                            MonoTime deadline) {
  return std::make_unique<WatchedBuffer>(this, inner_->createUnboundBuffer(data, bytes), deadline);
}

void WatchedContext::SetDeadline(MonoTime deadline) {
  absl::MutexLock lock(&mutex_);
  deadline_ = deadline;
}

MonoTime WatchedContext::deadline() const {
  absl::MutexLock lock(&mutex_);
  return deadline_;
}

absl::Status WatchedContext::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

void WatchedContext::Register(WatchedBuffer* buffer) {
  absl::MutexLock lock(&mutex_);
  buffers_.insert(buffer);
}

void WatchedContext::Unregister(WatchedBuffer* buffer) {
  absl::MutexLock lock(&mutex_);
  buffers_.erase(buffer);
}

void WatchedContext::Break(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
  }
  // In this order: after the connections are closed nothing writes to the buffers any more.
  CloseConnections();
  absl::MutexLock lock(&mutex_);
  for (WatchedBuffer* buffer : buffers_) buffer->Interrupt();
}

void WatchedContext::CloseConnections() {
  // Gloo closes all connections of a context when one wait times out, and has no other call that
  // also tells those who wait. So: wait a millisecond for what nobody sends.
  const BlockedPipeSignal blocked;
  char byte = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    try {
      const auto buffer = inner_->createUnboundBuffer(&byte, 1);
      buffer->recv(peer, kProbeSlot, 0, 1);
      buffer->waitRecv(nullptr, std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // Timed out, which closed them all, or was closed already.
    }
  }
}

bool WatchedContext::IsConnected(int peer) {
  const BlockedPipeSignal blocked;
  char byte = 0;
  try {
    // Gloo reports a broken connection to whoever uses it next; what nobody sends never arrives.
    inner_->createUnboundBuffer(&byte, 1)->recv(peer, kProbeSlot, 0, 1);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void WatchedContext::SetAwaitedRank(const WatchedBuffer* buffer, int peer) {
  absl::MutexLock lock(&mutex_);
  if (peer < 0) {
    awaited_.erase(buffer);
  } else {
    awaited_[buffer] = AwaitedRank{peer, ++waits_, false, false};
  }
}

void WatchedContext::BreakForLoss(const std::set<int>& ranks, const std::string& error) {
  if (!broken().ok()) return;
  std::vector<int> gone;
  for (const int peer : ranks) {
    if (peer >= 0 && !IsConnected(peer)) gone.push_back(peer);
  }
  const absl::Status guess = absl::UnavailableError(
      gone.empty() ? error
                   : absl::StrCat("the connection to rank ", absl::StrJoin(gone, " and to rank "),
                                  " closed"));
  Break(Explained({gone.begin(), gone.end()}, guess, true));
}

absl::Status WatchedContext::Explained(const std::set<int>& ranks, const absl::Status& guess,
                                       bool may_wait) const {
  return explanation_ ? explanation_(ranks, guess, may_wait) : guess;
}

void WatchedContext::CheckAwaitedRanks() {
  std::vector<std::pair<const WatchedBuffer*, AwaitedRank>> old;
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    for (auto& [buffer, awaited] : awaited_) {
      if (awaited.is_old) old.emplace_back(buffer, awaited);
      awaited.is_old = true;
    }
  }
  for (const auto& [buffer, awaited] : old) {
    if (IsConnected(awaited.rank)) continue;
    bool again = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = awaited_.find(buffer);
      if (found == awaited_.end() || found->second.wait != awaited.wait) continue;
      // The message may have come whole just before the connection closed, and its reader not have
      // run yet: it gets until the next look.
      again = awaited.was_gone;
      found->second.was_gone = true;
    }
    if (!again) continue;
    const absl::Status guess = absl::UnavailableError(absl::StrCat(
        "the connection to rank ", awaited.rank, " closed in the middle of a message"));
    return Break(Explained({awaited.rank}, guess, false));
  }
}

}  // namespace cadre::gloo
