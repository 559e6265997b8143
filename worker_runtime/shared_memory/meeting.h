// Where the ranks of one machine wait for each other: spin briefly, then sleep in the kernel,
// waking now and then to see whether those waited for still live.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_MEETING_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_MEETING_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/time.h"
#include "worker_runtime/shared_memory/peers.h"

namespace cadre {

// One thread at a time.
class Meeting {
 public:
  // `peers` must outlive this.
  explicit Meeting(Peers* peers) : peers_(*peers) {}

  Peers& peers() const { return peers_; }
  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  RankLine& line(int rank) const { return peers_.line(rank); }
  RankLine& own() const { return peers_.own(); }

  // Begins the next operation, which is told from the next meeting on.
  void BeginOperation() { ++operations_; }
  // Comes to the next meeting: all that this rank wrote before is seen by whoever waits for it. Who
  // sleeps is woken by the spin or the wait that follows.
  void Arrive();
  // Whether all have come to the meeting this rank came to last, without sleeping.
  bool SpinForAll() const;
  // Waits until they have.
  //   UNAVAILABLE        a rank's process is gone; says which
  //   ABORTED            a rank gave up, or this one did
  //   DEADLINE_EXCEEDED  names the ranks that did not come, and what each did last
  // This rank has then given up, and whoever waits for it is told the same.
  absl::Status WaitForAll(MonoTime deadline);

 private:
  bool Spin() const;
  bool HasCome(int rank) const {
    return static_cast<int32_t>(line(rank).meetings() - meetings_) >= 0;
  }
  absl::Status SleepOn(int peer);
  absl::Status CheckMissing();
  int FirstMissing() const;
  std::string Missing() const;

  Peers& peers_;
  uint32_t meetings_ = 0;
  uint32_t operations_ = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_MEETING_H_
