// Moves a collective's data: one sequence of pieces to each peer and one from each peer, all at the
// same time on non-blocking sockets.
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

// A piece with this value belongs to no step.
inline constexpr int kNoStep = -1;

// Memory that is sent or received as a whole. The piece does not own it.
struct Piece {
  char* data = nullptr;
  size_t bytes = 0;
  // The piece may begin when this many steps have finished.
  int after = 0;
  // The step that needs this piece, or kNoStep.
  int step = kNoStep;
};

// What a collective moves, and what it computes in between. A step has finished when all its pieces
// have been moved and `finish` has returned. Steps finish in order.
struct Plan {
  explicit Plan(int size) : outgoing(size), incoming(size) {}

  std::vector<std::vector<Piece>> outgoing;  // by peer, in the peer's order
  std::vector<std::vector<Piece>> incoming;
  int steps = 0;
  // Computes a step. `factors[r]` multiplies rank r's elements; it is valid for ranks that sent
  // something for the step. The function owns the memory that pieces point to besides the buffers.
  std::function<void(int step, const std::vector<double>& factors)> finish;
};

// Precedes the pieces in each direction that has any, so that data of different calls never mixes.
struct Opening {
  uint64_t call = 0;
  uint64_t fingerprint = 0;
  double factor = 1;  // the sender's Reduction::premultiply
};

// One thread at a time. `connections` is indexed by rank (empty for `rank`) and must outlive this.
class Flow {
 public:
  Flow(int rank, const std::vector<wire::Connection>& connections, const Opening& opening,
       Plan plan);
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  enum class State {
    kMoved,  // something was moved or finished
    kStuck,  // nothing can be moved now
    kDone,
    kLost,     // final: the connection with lost_peer() ended for lost_reason()
    kDiffers,  // final: lost_peer() makes a different call
  };
  // Never blocks.
  State Advance();
  // Waits up to `limit` milliseconds until something can be moved. After kStuck, Advance() tries a
  // blocked connection again only after this has found it ready.
  void Await(int limit);

  // Returns a peer from which data is due or to which data is stuck; -1: there is none.
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
    size_t at = 0;    // index of the current piece
    size_t done = 0;  // bytes of it that have been moved
    // The last call moved less than it could have, and Await() has not found the connection ready
    // since.
    bool is_blocked = false;
    bool is_over() const { return at == pieces.size(); }
  };

  bool MayMove(const Stream& stream) const {
    return !stream.is_over() && stream.pieces[stream.at].after <= finished_;
  }
  std::vector<Stream*> Open();
  // Returns false if the flow is lost.
  bool Move(Stream& stream);
  // Counts `bytes` more as moved. Returns false if the peer makes a different call.
  bool Count(Stream& stream, size_t bytes);
  void FinishSteps();
  bool Lose(const Stream& stream, std::string reason);
  State LostState() const { return differs_ ? State::kDiffers : State::kLost; }

  const Opening opening_;
  std::vector<Opening> received_openings_;  // by peer
  std::vector<double> factors_;             // by rank
  Plan plan_;
  std::vector<Stream> outgoing_, incoming_;
  std::vector<size_t> awaited_;  // by step: pieces that are still to be moved
  int finished_ = 0;
  bool has_moved_ = false;
  bool differs_ = false;
  int lost_peer_ = -1;
  std::string lost_reason_;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_FLOW_H_
