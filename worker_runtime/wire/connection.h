// A connection between two authenticated ranks, encrypted or not. What is encrypted is sent as
// records of up to kMaxRecordBytes, each after its length, under a key of this connection and
// direction only. All but Connection is pure.
#ifndef CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_
#define CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "cadre/result.h"

struct evp_cipher_ctx_st;

namespace cadre::wire {

// The size of a record's authentication tag.
inline constexpr size_t kRecordTagBytes = 16;
// The number of records under one key; the next key is derived from it. This is at most 64 GiB on a
// connection between ranks, a fraction of AES-GCM's limit.
inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;

// The keys of one side of a connection, 32 bytes each, for encryption and for decryption.
struct RecordKeys {
  std::string outgoing;
  std::string incoming;
};

// AES-256-GCM (OpenSSL) encryption of one direction of a connection: both sides count the records,
// so a record that is replayed, reordered or altered is rejected. Used by one thread at a time.
class RecordCipher {
 public:
  enum class Use { kSeal, kOpen };
  RecordCipher(std::string key, Use use);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // Begins the next record. `head` is authenticated, but not encrypted.
  void Begin(absl::string_view head);
  // Encrypts or decrypts the record's next bytes; `to` may be `from`.
  void Update(void* to, const void* from, size_t bytes);
  // Ends the record: creates its tag, or verifies it. Before that, decrypted bytes are not to be
  // trusted.
  void MakeTag(void* tag);
  bool HasTag(const void* tag);

 private:
  std::string key_;
  const Use use_;
  evp_cipher_ctx_st* const context_;
  uint64_t count_ = 0;
};

// The most content bytes of a record: small enough that the first part of a chunk is sent while the
// next is encrypted, and that decrypted data is still in the cache.
inline constexpr size_t kMaxRecordBytes = size_t{64} << 10;
// The length precedes the record; the tag follows it.
inline constexpr size_t kRecordHeadBytes = 4;

// A cursor over pieces of memory, which it does not own.
class Parts {
 public:
  Parts(const iovec* parts, size_t count);

  size_t left() const { return left_; }
  // The next contiguous bytes, at most `limit`; requires left() > 0.
  iovec Next(size_t limit);
  void Skip(size_t bytes);

 private:
  const iovec* part_;
  size_t done_ = 0;  // bytes of it
  size_t left_ = 0;
};

// Used by one thread at a time.
class RecordWriter {
 public:
  explicit RecordWriter(std::string key);

  // Encrypts the first bytes of the parts as one record. Requires that the last record has been
  // sent.
  void Seal(Parts parts);
  // The bytes of the record that are still to be sent.
  absl::string_view output() const;
  void RemovePrefix(size_t bytes) { sent_ += bytes; }
  // The size of the record's content; 0: there is none, or it has been sent.
  size_t content_bytes() const { return sent_ < bytes_ ? content_bytes_ : 0; }

 private:
  RecordCipher cipher_;
  std::unique_ptr<char[]> record_;  // allocated with the first record
  size_t content_bytes_ = 0;
  size_t bytes_ = 0;  // of the record
  size_t sent_ = 0;   // of these
};

// Used by one thread at a time.
class RecordReader {
 public:
  explicit RecordReader(std::string key);

  // The space for received bytes; Add() reports how many were written to it.
  iovec room();
  void Add(size_t bytes) { end_ += bytes; }
  // Copies the content of complete records to the parts. Returns the number of bytes or, for good,
  // -1: the data is not what was sent. The parts may be overwritten beyond the returned number.
  ssize_t Read(Parts parts);

 private:
  // Decrypts the next record, which must be complete; false: it is not authentic.
  bool Open(Parts& parts, size_t content_bytes);

  RecordCipher cipher_;
  std::unique_ptr<char[]> arrived_;  // allocated with the first record
  size_t begin_ = 0, end_ = 0;       // the bytes that have not been decrypted
  std::string opened_;               // decrypted bytes that did not fit into the parts,
  size_t given_ = 0;                 // and how many of them were returned since
  bool is_broken_ = false;
};

// Whether ranks encrypt what they send to other nodes. `cadre run --encrypt` sets it to 1 for all
// its workers; users of other launchers set it themselves.
inline constexpr char kEncryptVariable[] = "CADRE_ENCRYPT";

// Whether the variable is 1; 0 means the same as not set. INVALID_ARGUMENT: it has another value.
Result<bool> WantsEncryption();

// Owns a non-blocking socket. Each direction may be used by one thread at a time.
class Connection {
 public:
  // Not connected.
  Connection() = default;
  // Without keys the connection is not encrypted.
  explicit Connection(ScopedFd socket, std::optional<RecordKeys> keys = std::nullopt);

  bool ok() const { return socket_.ok(); }
  // For poll() and shutdown().
  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  // Like sendmsg() and recvmsg() on a non-blocking socket: return the number of bytes sent or
  // received, or -1 and set errno. Call poll() only after a call that transferred less than was
  // asked for: an encrypted connection may hold bytes that have already arrived.
  //
  // The next Send() must begin with all bytes that this one did not take: an encrypted connection
  // may have sent a part of the record that contains them.
  ssize_t Send(const iovec* parts, size_t count) const;
  // Returns 0 if the peer has closed the connection. EBADMSG: the data is not what the peer sent.
  ssize_t Receive(const iovec* parts, size_t count) const;

  ssize_t Send(absl::string_view bytes) const;
  ssize_t Receive(void* bytes, size_t size) const;

 private:
  ScopedFd socket_;
  // Null if the connection is not encrypted.
  std::unique_ptr<RecordWriter> writer_;
  std::unique_ptr<RecordReader> reader_;
};

// The message for a connection that this side ends with EBADMSG.
inline constexpr char kAlteredText[] = "the received data were altered on their way";

// Describes why a connection ended, by the errno that Send() or Receive() left; 0: the peer closed
// it.
std::string EndText(int error);

}  // namespace cadre::wire

#endif  // CADRE_WORKER_RUNTIME_WIRE_CONNECTION_H_
