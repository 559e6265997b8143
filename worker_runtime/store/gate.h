// Lets into a store whoever proves that it knows the store's key. Strangers cost a connection each
// for a while, and a store never hears of them. One thread; never blocks.
#ifndef CADRE_WORKER_RUNTIME_STORE_GATE_H_
#define CADRE_WORKER_RUNTIME_STORE_GATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/result.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/store/entry.h"

namespace cadre::store {

// Connections that have not proved themselves, beside those of all ranks at once: the oldest of
// those that have said nothing make room for new ones, then the oldest of all.
inline constexpr size_t kMaxStrangers = 64;
// And each has so long for it.
inline constexpr absl::Duration kProofPatience = absl::Seconds(10);

class Gate {
 public:
  // `ranks`: how many may come. INTERNAL: the system has no descriptor for it.
  static Result<std::unique_ptr<Gate>> Open(ScopedFd listener, sockets::Terms terms, int ranks);

  // Readable when Next should be called.
  int fd() const { return epoll_.get(); }
  // The next one that has proved itself; without a socket: there is none now.
  Entry Next();
  // What the clock asks for: drops who took too long, takes newcomers again after a pause. When to
  // call it again.
  MonoTime Advance(MonoTime now);

  // As who the last one called that said it is a rank and did not prove it, or does not encrypt
  // where this side does, or the other way round; -1: nobody. Any thread.
  int refused_rank() const { return refused_rank_; }
  // Whether this process could at some time open no descriptor for who came. Any thread.
  bool lacked_descriptors() const { return lacked_descriptors_; }

 private:
  struct Stranger {
    ScopedFd socket;
    sockets::Handshake handshake;
    MonoTime give_up;
    std::string received;
  };

  Gate(ScopedFd epoll, ScopedFd listener, sockets::Terms terms, int ranks);
  void Accept();
  // False: there is nobody.
  bool MakeRoom();
  // False: it is a stranger no more, or not worth to be kept.
  bool Serve(Stranger& stranger);
  bool Watch(int fd, uint64_t number);

  const ScopedFd epoll_;
  const ScopedFd listener_;
  const sockets::Terms terms_;
  const size_t room_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Stranger> strangers_;  // the oldest first
  std::deque<Entry> proved_;
  std::atomic<int> refused_rank_{-1};
  std::atomic<bool> lacked_descriptors_{false};
  // This process could open no more descriptors: nobody is taken before then.
  MonoTime pause_until_ = MonoTime::Never();
};

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_GATE_H_
