#include "agent/torch_store/answer_queue.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

namespace cadre::agent {
namespace {

// Pieces that go with one call.
constexpr size_t kMaxPieces = 64;
// Short answers are put together up to this.
constexpr size_t kMaxTogether = 4 << 10;

}  // namespace

bool AnswerQueue::Add(absl::string_view bytes, const SharedText& value) {
  const size_t more = bytes.size() + (value == nullptr ? 1 : 2) * sizeof(Piece);
  if (!budget_->Fits(more)) return false;
  const bool together = !pieces_.empty() && pieces_.back().value == nullptr &&
                        pieces_.back().bytes.size() + bytes.size() <= kMaxTogether;
  if (!together) pieces_.emplace_back();
  pieces_.back().bytes.append(bytes.data(), bytes.size());
  size_t counted = bytes.size() + (together ? 0 : sizeof(Piece));
  unread_bytes_ += bytes.size();
  if (value != nullptr) {
    pieces_.push_back({"", value});
    counted += sizeof(Piece);
    unread_bytes_ += value->text().size();
  }
  budget_->Take(counted);
  counted_ += counted;
  return true;
}

bool AnswerQueue::SendTo(int socket) {
  while (!pieces_.empty()) {
    iovec parts[kMaxPieces];
    msghdr message = {};
    message.msg_iov = parts;
    size_t offset = sent_, wanted = 0;
    for (size_t i = 0; i < std::min(pieces_.size(), kMaxPieces); ++i) {
      const absl::string_view text = pieces_[i].text().substr(offset);
      parts[message.msg_iovlen++] = {const_cast<char*>(text.data()), text.size()};
      wanted += text.size();
      offset = 0;
    }
    const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    Sent(static_cast<size_t>(sent));
    if (static_cast<size_t>(sent) < wanted) return true;
  }
  return true;
}

void AnswerQueue::Sent(size_t bytes) {
  unread_bytes_ -= bytes;
  bytes += sent_;
  while (!pieces_.empty() && bytes >= pieces_.front().text().size()) {
    const Piece& first = pieces_.front();
    bytes -= first.text().size();
    const size_t counted = sizeof(Piece) + first.bytes.size();
    counted_ -= counted;
    budget_->Give(counted);
    pieces_.pop_front();
  }
  sent_ = bytes;
}

}  // namespace cadre::agent
