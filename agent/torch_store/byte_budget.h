// Counts the bytes that a store holds, including values, which count themselves while they are
// referenced. One thread.
#ifndef CADRE_AGENT_TORCH_STORE_BYTE_BUDGET_H_
#define CADRE_AGENT_TORCH_STORE_BYTE_BUDGET_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"

namespace cadre::agent {

class ByteBudget {
 public:
  explicit ByteBudget(size_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  bool Fits(size_t bytes) const { return bytes <= limit_ && held_ <= limit_ - bytes; }
  void Take(size_t bytes) { held_ += bytes; }
  void Give(size_t bytes) {
    CADRE_CHECK(bytes <= held_, "a store gives back ", bytes, " of ", held_, " bytes");
    held_ -= bytes;
  }
  size_t held() const { return held_; }
  size_t limit() const { return limit_; }

 private:
  const size_t limit_;
  size_t held_ = 0;
};

// A value of the store. An unread answer shares it, even if the key has another value by then.
class CountedText {
 public:
  CountedText(std::string text, ByteBudget* budget) : text_(std::move(text)), budget_(budget) {
    budget_->Take(text_.size());
  }
  ~CountedText() { budget_->Give(text_.size()); }
  CountedText(const CountedText&) = delete;
  CountedText& operator=(const CountedText&) = delete;

  const std::string& text() const { return text_; }
  void Append(const std::string& more) {
    budget_->Take(more.size());
    text_ += more;
  }

 private:
  std::string text_;
  ByteBudget* const budget_;
};

using SharedText = std::shared_ptr<const CountedText>;

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_BYTE_BUDGET_H_
