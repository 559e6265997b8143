// Moves a collective's data: to each peer a sequence of pieces, from each peer another, all at
// once, on sockets that are not waited for one by one.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_FLOW_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/time.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// Counts for no step.
inline constexpr int kNoStep = -1;

// Memory that goes out or comes in as a whole; not owned.
struct Piece {
  char* data = nullptr;
  size_t bytes = 0;
  // Begins when so many steps are over.
  int after = 0;
  // The step that waits for it, or kNoStep.
  int step = kNoStep;
};

// What a collective moves, and what it computes in between. A step is over when all pieces that
// count for it have been moved and `finish` has returned; steps are finished in order.
struct Plan {
  explicit Plan(int size) : outgoing(size), incoming(size) {}

  std::vector<std::vector<Piece>> outgoing;  // by peer, in order; the same at the other end
  std::vector<std::vector<Piece>> incoming;
  int steps = 0;
  // `factors`: by rank, what each one's elements are to be multiplied with; of those that a step
  // got something from. Keeps what memory of its own the pieces point to.
  std::function<void(int step, const std::vector<double>& factors)> finish;
};

// Goes ahead of the pieces in each direction that has any, so that different calls never mix.
struct Opening {
  uint64_t call = 0;
  uint64_t fingerprint = 0;
  double factor = 1;  // Reduction::premultiply of who sends it
};

// One thread at a time. The connections, by rank (none for `rank`, this one), must outlive this.
class Flow {
 public:
  Flow(int rank, const std::vector<wire::Connection>& connections, const Opening& opening,
       Plan plan);
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  enum class State {
    kMoved,  // something was moved or finished
    kStuck,  // nothing can be, now
    kDone,
    kLost,     // for good: the connection with lost_peer() has ended, lost_reason()
    kDiffers,  // for good: lost_peer() makes another call
  };
  // Never waits.
  State Advance();
  // Waits until something may be moved, `limit` milliseconds at most. Where Advance() was stuck it
  // stays so until then.
  void Await(int limit);

  // One that has not sent, or not taken, what it is to; -1: none.
  int awaited_peer() const;
  int lost_peer() const { return lost_peer_; }
  const std::string& lost_reason() const { return lost_reason_; }

 private:
  // One direction between this rank and a peer.
  struct Stream {
    int peer = -1;
    const wire::Connection* connection = nullptr;
    bool sends = false;
    std::vector<Piece> pieces;
    size_t at = 0;    // the piece under way
    size_t done = 0;  // bytes of it
    // The connection took or had less than was wanted, and has not been waited for since.
    bool is_blocked = false;
    bool is_over() const { return at == pieces.size(); }
  };

  bool MayMove(const Stream& stream) const {
    return !stream.is_over() && stream.pieces[stream.at].after <= finished_;
  }
  std::vector<Stream*> Open();
  // False: the flow is lost.
  bool Move(Stream& stream);
  // Counts `bytes` more; false: the peer makes another call.
  bool Count(Stream& stream, size_t bytes);
  void FinishSteps();
  bool Lose(const Stream& stream, std::string reason);
  State LostState() const { return differs_ ? State::kDiffers : State::kLost; }

  const Opening opening_;
  std::vector<Opening> heard_;   // by peer
  std::vector<double> factors_;  // by rank
  Plan plan_;
  std::vector<Stream> outgoing_, incoming_;
  std::vector<size_t> awaited_;  // by step: pieces still to be moved
  int finished_ = 0;
  bool has_moved_ = false;
  bool differs_ = false;
  int lost_peer_ = -1;
  std::string lost_reason_;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_FLOW_H_
