// AES-256-GCM (OpenSSL) of what one side of a connection sends: records that are numbered by both
// sides, so that none is taken twice, in another place or altered. Pure.
#ifndef CADRE_WORKER_RUNTIME_WIRE_RECORD_CIPHER_H_
#define CADRE_WORKER_RUNTIME_WIRE_RECORD_CIPHER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

struct evp_cipher_ctx_st;

namespace cadre::wire {

// What proves that a record is as it was sealed.
inline constexpr size_t kRecordTagBytes = 16;
// Under one key, whose successor is made from it: at most 64 GiB on a connection between ranks, a
// fraction of what AES-GCM is good for.
inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;

// Of one side of a connection, each 32 bytes: what it seals with, and what it opens with.
struct RecordKeys {
  std::string outgoing;
  std::string incoming;
};

// One direction; one thread at a time.
class RecordCipher {
 public:
  enum class Use { kSeal, kOpen };
  RecordCipher(std::string key, Use use);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // Begins the next record. `head` goes in clear, and cannot be altered either.
  void Begin(absl::string_view head);
  // Seals or opens its next bytes; `to` may be `from`.
  void Update(void* to, const void* from, size_t bytes);
  // The record's end: makes its tag, or checks it. Until then what was opened may be anything.
  void MakeTag(void* tag);
  bool HasTag(const void* tag);

 private:
  std::string key_;
  const Use use_;
  evp_cipher_ctx_st* const context_;
  uint64_t count_ = 0;
};

}  // namespace cadre::wire

#endif  // CADRE_WORKER_RUNTIME_WIRE_RECORD_CIPHER_H_
