#include "worker_runtime/sockets/flow.h"

#include <errno.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace cadre::sockets {
namespace {

// Limits for one system call: enough for an opening and a few pieces, and so little that received
// data is still in the cache when it is reduced.
constexpr size_t kMaxParts = 8;
constexpr size_t kMaxBytes = size_t{512} << 10;

}  // namespace

Flow::Flow(int rank, const std::vector<wire::Connection>& connections, const Opening& opening,
           Plan plan)
    : opening_(opening),
      received_openings_(connections.size()),
      factors_(connections.size(), 1.0),
      plan_(std::move(plan)),
      awaited_(static_cast<size_t>(plan_.steps)) {
  const int size = static_cast<int>(connections.size());
  factors_[rank] = opening.factor;
  const auto add = [&](std::vector<std::vector<Piece>>& all, int peer, void* first, bool sends) {
    std::vector<Piece>& pieces = all[peer];
    if (pieces.empty()) return;
    for (const Piece& piece : pieces) {
      if (piece.step != kNoStep) ++awaited_[piece.step];
    }
    Stream stream;
    stream.peer = peer;
    stream.connection = &connections[peer];
    stream.sends = sends;
    stream.pieces = std::move(pieces);
    stream.pieces.insert(stream.pieces.begin(), {static_cast<char*>(first), sizeof(Opening)});
    (sends ? outgoing_ : incoming_).push_back(std::move(stream));
  };
  // Each rank begins with its neighbour, so that not all begin with the same rank.
  for (int step = 1; step < size; ++step) {
    const int to = (rank + step) % size, from = (rank + size - step) % size;
    add(plan_.outgoing, to, const_cast<Opening*>(&opening_), /*sends=*/true);
    add(plan_.incoming, from, &received_openings_[from], /*sends=*/false);
  }
}

Flow::State Flow::Advance() {
  if (lost_peer_ >= 0) return LostState();
  has_moved_ = false;
  FinishSteps();
  bool is_over = true;
  for (Stream& stream : outgoing_) {
    if (MayMove(stream) && !stream.is_blocked && !Move(stream)) return LostState();
    is_over = is_over && stream.is_over();
  }
  for (Stream& stream : incoming_) {
    if (MayMove(stream) && !stream.is_blocked && !Move(stream)) return LostState();
    is_over = is_over && stream.is_over();
  }
  if (is_over && finished_ == plan_.steps) return State::kDone;
  return has_moved_ ? State::kMoved : State::kStuck;
}

bool Flow::Move(Stream& stream) {
  std::array<iovec, kMaxParts> parts;
  size_t count = 0, total = 0;
  for (size_t i = stream.at; i < stream.pieces.size(); ++i) {
    const Piece& piece = stream.pieces[i];
    if (piece.after > finished_ || count == kMaxParts || total >= kMaxBytes) break;
    const size_t done = i == stream.at ? stream.done : 0;
    if (piece.bytes == done) continue;
    const size_t bytes = std::min(piece.bytes - done, kMaxBytes - total);
    parts[count++] = {piece.data + done, bytes};
    total += bytes;
  }
  // There are only empty pieces.
  if (count == 0) return Count(stream, 0);
  const wire::Connection& connection = *stream.connection;
  const ssize_t moved =
      stream.sends ? connection.Send(parts.data(), count) : connection.Receive(parts.data(), count);
  // The connection moved less than was asked for, so it is not ready for more now.
  stream.is_blocked = moved < static_cast<ssize_t>(total);
  if (moved > 0) return Count(stream, static_cast<size_t>(moved));
  if (moved == 0) return Lose(stream, wire::EndText(0));
  if (errno == EAGAIN || errno == EINTR) return true;
  return Lose(stream, wire::EndText(errno));
}

bool Flow::Count(Stream& stream, size_t bytes) {
  has_moved_ = true;
  while (!stream.is_over()) {
    const Piece& piece = stream.pieces[stream.at];
    const size_t some = std::min(bytes, piece.bytes - stream.done);
    stream.done += some;
    bytes -= some;
    // An empty piece that may not begin yet waits for its turn like any other.
    if (stream.done < piece.bytes || piece.after > finished_) break;
    if (!stream.sends && stream.at == 0) {
      const Opening& received = received_openings_[stream.peer];
      if (received.call != opening_.call || received.fingerprint != opening_.fingerprint) {
        differs_ = true;
        return Lose(stream, "it calls another collective than this rank");
      }
      factors_[stream.peer] = received.factor;
    }
    if (piece.step != kNoStep) --awaited_[piece.step];
    ++stream.at;
    stream.done = 0;
  }
  CADRE_CHECK(bytes == 0, bytes, " bytes beyond the plan");
  FinishSteps();
  return true;
}

void Flow::FinishSteps() {
  while (finished_ < plan_.steps && awaited_[finished_] == 0) {
    if (plan_.finish) plan_.finish(finished_, factors_);
    ++finished_;
    has_moved_ = true;
  }
}

bool Flow::Lose(const Stream& stream, std::string reason) {
  lost_peer_ = stream.peer;
  lost_reason_ = std::move(reason);
  return false;
}

int Flow::awaited_peer() const {
  for (const std::vector<Stream>* const streams : {&incoming_, &outgoing_}) {
    for (const Stream& stream : *streams) {
      if (MayMove(stream)) return stream.peer;
    }
  }
  return -1;
}

std::vector<Flow::Stream*> Flow::Open() {
  std::vector<Stream*> open;
  for (std::vector<Stream>* const streams : {&outgoing_, &incoming_}) {
    for (Stream& stream : *streams) {
      if (MayMove(stream)) open.push_back(&stream);
    }
  }
  return open;
}

void Flow::Await(int limit) {
  const std::vector<Stream*> open = Open();
  std::vector<pollfd> descriptors;
  descriptors.reserve(open.size());
  for (const Stream* const stream : open) {
    descriptors.push_back(
        {stream->connection->fd(), static_cast<short>(stream->sends ? POLLOUT : POLLIN), 0});
  }
  if (poll(descriptors.data(), descriptors.size(), limit) <= 0) return;
  for (size_t i = 0; i < open.size(); ++i) {
    if (descriptors[i].revents != 0) open[i]->is_blocked = false;
  }
}

}  // namespace cadre::sockets
