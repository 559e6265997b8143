// Sends and receives over a connection between two ranks, unencrypted or in encrypted records.
#include "worker_runtime/wire/connection.h"

#include <errno.h>
#include <openssl/evp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/keyed_digest.h"
#include "base/text.h"

namespace cadre::wire {
namespace {

msghdr MessageOf(const iovec* parts, size_t count) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return message;
}

ssize_t SendSealed(int socket, RecordWriter& writer, Parts parts) {
  ssize_t taken = 0;
  while (parts.left() > 0) {
    // Otherwise the last call left a part of a record.
    if (writer.content_bytes() == 0) writer.Seal(parts);
    const size_t content_bytes = writer.content_bytes();
    CADRE_CHECK(content_bytes <= parts.left(), parts.left(), " bytes to send, fewer than before");
    const absl::string_view output = writer.output();
    const ssize_t sent = send(socket, output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      // Permanent, unless the socket is only full.
      if (errno != EAGAIN && errno != EINTR) writer.RemovePrefix(output.size());
      return taken > 0 ? taken : -1;
    }
    writer.RemovePrefix(static_cast<size_t>(sent));
    if (writer.content_bytes() > 0) continue;
    parts.Skip(content_bytes);
    taken += static_cast<ssize_t>(content_bytes);
  }
  return taken;
}

ssize_t ReceiveSealed(int socket, RecordReader& reader, Parts parts) {
  ssize_t given = 0;
  while (true) {
    const ssize_t read = reader.Read(parts);
    if (read < 0) {
      errno = EBADMSG;
      return -1;
    }
    given += read;
    parts.Skip(static_cast<size_t>(read));
    if (parts.left() == 0) return given;
    const iovec room = reader.room();
    const ssize_t got = recv(socket, room.iov_base, room.iov_len, MSG_DONTWAIT);
    if (got <= 0) return given > 0 ? given : got;
    reader.Add(static_cast<size_t>(got));
  }
}

}  // namespace

Connection::Connection(ScopedFd socket, std::optional<RecordKeys> keys)
    : socket_(std::move(socket)) {
  if (!keys.has_value()) return;
  writer_ = std::make_unique<RecordWriter>(std::move(keys->outgoing));
  reader_ = std::make_unique<RecordReader>(std::move(keys->incoming));
}

ssize_t Connection::Send(const iovec* parts, size_t count) const {
  if (writer_ != nullptr) return SendSealed(socket_.get(), *writer_, Parts(parts, count));
  const msghdr message = MessageOf(parts, count);
  return sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t Connection::Receive(const iovec* parts, size_t count) const {
  if (reader_ != nullptr) return ReceiveSealed(socket_.get(), *reader_, Parts(parts, count));
  msghdr message = MessageOf(parts, count);
  return recvmsg(socket_.get(), &message, MSG_DONTWAIT);
}

ssize_t Connection::Send(absl::string_view bytes) const {
  const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  return Send(&part, 1);
}

ssize_t Connection::Receive(void* bytes, size_t size) const {
  const iovec part = {bytes, size};
  return Receive(&part, 1);
}

std::string EndText(int error) {
  if (error == 0) return "it closed the connection";
  // Sockets themselves never return this.
  if (error == EBADMSG) return kAlteredText;
  return ErrnoText(error);
}

namespace {

constexpr size_t kMaxSealedBytes = kRecordHeadBytes + kMaxRecordBytes + kRecordTagBytes;
// Room for a few records: a system call costs as much as decrypting one.
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
  // The rest is less than a record.
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

namespace {

constexpr size_t kNumberBytes = 12;  // AES-GCM's nonce

// With valid arguments OpenSSL fails only without memory.
void Check(int done) { CADRE_CHECK(done == 1, "AES-256-GCM", " by OpenSSL failed"); }

const unsigned char* BytesOf(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

RecordCipher::RecordCipher(std::string key, Use use)
    : key_(std::move(key)), use_(use), context_(EVP_CIPHER_CTX_new()) {
  Check(context_ != nullptr);
}

RecordCipher::~RecordCipher() { EVP_CIPHER_CTX_free(context_); }

void RecordCipher::Begin(absl::string_view head) {
  const bool has_new_key = count_ % kRecordsPerKey == 0;
  if (has_new_key && count_ > 0) key_ = DeriveKey(key_, "", "cadre record key after this");
  unsigned char number[kNumberBytes] = {};
  memcpy(number, &count_, sizeof(count_));
  Check(EVP_CipherInit_ex(context_, count_ == 0 ? EVP_aes_256_gcm() : nullptr, nullptr,
                          has_new_key ? BytesOf(key_) : nullptr, number,
                          use_ == Use::kSeal ? 1 : 0));
  ++count_;
  int bytes = 0;
  if (head.empty()) return;
  Check(EVP_CipherUpdate(context_, nullptr, &bytes, BytesOf(head), static_cast<int>(head.size())));
}

void RecordCipher::Update(void* to, const void* from, size_t bytes) {
  int moved = 0;
  Check(EVP_CipherUpdate(context_, static_cast<unsigned char*>(to), &moved,
                         static_cast<const unsigned char*>(from), static_cast<int>(bytes)));
}

void RecordCipher::MakeTag(void* tag) {
  int bytes = 0;
  Check(EVP_CipherFinal_ex(context_, nullptr, &bytes));
  Check(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, kRecordTagBytes, tag));
}

bool RecordCipher::HasTag(const void* tag) {
  int bytes = 0;
  Check(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, kRecordTagBytes,
                            const_cast<void*>(tag)));
  return EVP_CipherFinal_ex(context_, nullptr, &bytes) == 1;
}

Result<bool> WantsEncryption() {
  const char* const variable = std::getenv(kEncryptVariable);
  const absl::string_view value = variable == nullptr ? "" : variable;
  if (value == "1") return true;
  if (value.empty() || value == "0") return false;
  return InvalidArgumentError(
      absl::StrCat(kEncryptVariable, " is ", Quoted(value), "; it may be 1 or 0, or not be set"));
}

}  // namespace cadre::wire
