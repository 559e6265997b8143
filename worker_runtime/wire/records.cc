#include "worker_runtime/wire/records.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cadre::wire {
namespace {

constexpr size_t kMaxSealedBytes = kRecordHeadBytes + kMaxRecordBytes + kRecordTagBytes;
// A few records at once: a system call costs as much as opening one.
constexpr size_t kArrivedBytes = 4 * kMaxSealedBytes;

}  // namespace

Parts::Parts(const iovec* parts, size_t count) : part_(parts) {
  for (size_t i = 0; i < count; ++i) left_ += parts[i].iov_len;
}

iovec Parts::Next(size_t limit) {
  while (part_->iov_len == done_) {
    ++part_;
    done_ = 0;
  }
  const iovec next = {static_cast<char*>(part_->iov_base) + done_,
                      std::min(limit, part_->iov_len - done_)};
  done_ += next.iov_len;
  left_ -= next.iov_len;
  return next;
}

void Parts::Skip(size_t bytes) {
  while (bytes > 0) bytes -= Next(bytes).iov_len;
}

RecordWriter::RecordWriter(std::string key) : cipher_(std::move(key), RecordCipher::Use::kSeal) {}

void RecordWriter::Seal(Parts parts) {
  CADRE_CHECK(output().empty() && parts.left() > 0, parts.left(), " bytes");
  if (record_ == nullptr) record_.reset(new char[kMaxSealedBytes]);
  content_bytes_ = std::min(parts.left(), kMaxRecordBytes);
  const uint32_t head = static_cast<uint32_t>(content_bytes_);
  static_assert(sizeof(head) == kRecordHeadBytes);
  memcpy(record_.get(), &head, sizeof(head));
  cipher_.Begin({record_.get(), kRecordHeadBytes});
  char* to = record_.get() + kRecordHeadBytes;
  for (size_t left = content_bytes_; left > 0;) {
    const iovec part = parts.Next(left);
    cipher_.Update(to, part.iov_base, part.iov_len);
    to += part.iov_len;
    left -= part.iov_len;
  }
  cipher_.MakeTag(to);
  bytes_ = kRecordHeadBytes + content_bytes_ + kRecordTagBytes;
  sent_ = 0;
}

absl::string_view RecordWriter::output() const {
  if (sent_ == bytes_) return "";
  return {record_.get() + sent_, bytes_ - sent_};
}

RecordReader::RecordReader(std::string key) : cipher_(std::move(key), RecordCipher::Use::kOpen) {}

iovec RecordReader::room() {
  if (arrived_ == nullptr) arrived_.reset(new char[kArrivedBytes]);
  // What is left is less than a record.
  if (begin_ > 0) memmove(arrived_.get(), arrived_.get() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  return {arrived_.get() + end_, kArrivedBytes - end_};
}

ssize_t RecordReader::Read(Parts parts) {
  const size_t wanted = parts.left();
  while (!is_broken_ && parts.left() > 0) {
    if (given_ < opened_.size()) {
      const iovec part = parts.Next(opened_.size() - given_);
      memcpy(part.iov_base, &opened_[given_], part.iov_len);
      given_ += part.iov_len;
      continue;
    }
    const size_t arrived = end_ - begin_;
    if (arrived < kRecordHeadBytes) break;
    uint32_t content_bytes = 0;
    memcpy(&content_bytes, arrived_.get() + begin_, sizeof(content_bytes));
    if (content_bytes == 0 || content_bytes > kMaxRecordBytes) {
      is_broken_ = true;
    } else if (arrived < kRecordHeadBytes + content_bytes + kRecordTagBytes) {
      break;
    } else {
      is_broken_ = !Open(parts, content_bytes);
    }
  }
  if (is_broken_) return -1;
  return static_cast<ssize_t>(wanted - parts.left());
}

bool RecordReader::Open(Parts& parts, size_t content_bytes) {
  const char* from = arrived_.get() + begin_;
  cipher_.Begin({from, kRecordHeadBytes});
  from += kRecordHeadBytes;
  size_t left = content_bytes;
  while (left > 0 && parts.left() > 0) {
    const iovec part = parts.Next(left);
    cipher_.Update(part.iov_base, from, part.iov_len);
    from += part.iov_len;
    left -= part.iov_len;
  }
  opened_.resize(left);
  given_ = 0;
  if (left > 0) cipher_.Update(&opened_[0], from, left);
  begin_ += kRecordHeadBytes + content_bytes + kRecordTagBytes;
  return cipher_.HasTag(from + left);
}

}  // namespace cadre::wire
