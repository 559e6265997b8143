// Answers that a client has not taken yet, in order, and how they go to its socket. Values are
// shared with the store, not copied. One thread.
#ifndef CADRE_AGENT_TORCH_STORE_ANSWER_QUEUE_H_
#define CADRE_AGENT_TORCH_STORE_ANSWER_QUEUE_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/torch_store/byte_budget.h"

namespace cadre::agent {

class AnswerQueue {
 public:
  // `budget` counts what is queued, but for the values, which count themselves.
  explicit AnswerQueue(ByteBudget* budget) : budget_(budget) {}
  ~AnswerQueue() { budget_->Give(counted_); }
  AnswerQueue(const AnswerQueue&) = delete;
  AnswerQueue& operator=(const AnswerQueue&) = delete;

  // `value` may be null. False: there is no room for it.
  bool Add(absl::string_view bytes, const SharedText& value);

  // Of values, too.
  size_t unread_bytes() const { return unread_bytes_; }
  bool empty() const { return pieces_.empty(); }

  // Sends what the socket takes now. False: it is broken.
  bool SendTo(int socket);

 private:
  struct Piece {
    std::string bytes;
    SharedText value;  // instead of them
    absl::string_view text() const { return value == nullptr ? bytes : value->text(); }
  };
  void Sent(size_t bytes);

  ByteBudget* const budget_;
  std::deque<Piece> pieces_;
  // Of the first piece, what has gone.
  size_t sent_ = 0;
  size_t unread_bytes_ = 0;
  size_t counted_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_ANSWER_QUEUE_H_
