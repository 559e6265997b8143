// What crosses an encrypted connection: records (record_cipher.h) of up to kMaxRecordBytes, each
// behind its length, under a key of this connection and direction alone. Pure.
#ifndef CADRE_WORKER_RUNTIME_WIRE_RECORDS_H_
#define CADRE_WORKER_RUNTIME_WIRE_RECORDS_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "worker_runtime/wire/record_cipher.h"

namespace cadre::wire {

// Of one record: so few that a chunk's first part is on its way while the next is sealed, and that
// what was just opened is still in the cache.
inline constexpr size_t kMaxRecordBytes = size_t{64} << 10;
// Its length before it; its tag is behind it.
inline constexpr size_t kRecordHeadBytes = 4;

// Pieces of memory that are gone through in order; not owned.
class Parts {
 public:
  Parts(const iovec* parts, size_t count);

  size_t left() const { return left_; }
  // The next bytes that lie together, `limit` at most; there is one left.
  iovec Next(size_t limit);
  void Skip(size_t bytes);

 private:
  const iovec* part_;
  size_t done_ = 0;  // bytes of it
  size_t left_ = 0;
};

// One thread at a time.
class RecordWriter {
 public:
  explicit RecordWriter(std::string key);

  // Makes a record of what the parts begin with. Only when the last one is gone.
  void Seal(Parts parts);
  // What is still to be sent of the record.
  absl::string_view output() const;
  void RemovePrefix(size_t bytes) { sent_ += bytes; }
  // What the record says; 0: there is none, or it is gone.
  size_t content_bytes() const { return sent_ < bytes_ ? content_bytes_ : 0; }

 private:
  RecordCipher cipher_;
  std::unique_ptr<char[]> record_;  // made with the first
  size_t content_bytes_ = 0;
  size_t bytes_ = 0;  // of the record
  size_t sent_ = 0;   // of these
};

// One thread at a time.
class RecordReader {
 public:
  explicit RecordReader(std::string key);

  // Where what arrives is to be put, and that so much was.
  iovec room();
  void Add(size_t bytes) { end_ += bytes; }
  // Fills the parts with what has come whole; how many bytes, or -1, from then on: what came is not
  // what was sent. Parts may be overwritten with what is then not told.
  ssize_t Read(Parts parts);

 private:
  // The next record, which is there; false: it is no good.
  bool Open(Parts& parts, size_t content_bytes);

  RecordCipher cipher_;
  std::unique_ptr<char[]> arrived_;  // made with the first
  size_t begin_ = 0, end_ = 0;       // of what has not been opened
  std::string opened_;               // what the parts had no room for,
  size_t given_ = 0;                 // and how much of it was given since
  bool is_broken_ = false;
};

}  // namespace cadre::wire

#endif  // CADRE_WORKER_RUNTIME_WIRE_RECORDS_H_
