// Counts what one connection sends and limits it: by the AdmissionBudget of its source until it has
// authenticated, then by the limits of its caller. gRPC 1.51 itself accepts any number of streams,
// resets and CONTINUATION frames.
#ifndef CADRE_RENDEZVOUS_SERVICE_CONNECTION_WATCH_H_
#define CADRE_RENDEZVOUS_SERVICE_CONNECTION_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "rendezvous/service/caller_limits.h"

namespace cadre::service {

// Counts the frames of an HTTP/2 connection (RFC 9113, section 4.1) and the gRPC messages in them
// from the client's bytes, without decoding their content. Pure; one thread at a time.
class Http2Frames {
 public:
  struct Counts {
    // HEADERS, RST_STREAM and CONTINUATION frames: a call begins or ends, or its headers continue.
    uint64_t calls = 0;
    // Payload bytes of HEADERS and CONTINUATION frames.
    uint64_t header_bytes = 0;
    // The length of the longest header block that the bytes belong to: a HEADERS frame and its
    // CONTINUATION frames, as far as they have arrived.
    uint64_t header_block_bytes = 0;
    // PING, SETTINGS and rarer frames.
    uint64_t control = 0;
    // DATA and WINDOW_UPDATE frames.
    uint64_t small = 0;
    // Payload bytes of DATA frames.
    uint64_t data_bytes = 0;
    // The data bytes of calls whose last DATA frame is among these bytes, kCallBytesMax per call at
    // most.
    uint64_t ended_call_bytes = 0;
  };
  static constexpr uint64_t kCallBytesMax = 1 << 20;

  // Counts the next bytes. A frame counts once its first nine bytes have arrived.
  Counts Read(absl::string_view bytes);

  // Calls on which the client may still send.
  size_t open_calls() const { return calls_.size(); }
  // Bytes of their incomplete messages.
  uint64_t partial_bytes() const { return partial_bytes_; }

 private:
  static constexpr size_t kPrefaceBytes = 24;  // "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
  static constexpr size_t kHeadBytes = 9;
  static constexpr size_t kMessagePrefixBytes = 5;  // of gRPC: whether it is compressed, its length

  struct Call {
    uint64_t bytes = 0;
    // The message being received: its prefix, and how many bytes have arrived and are still
    // missing.
    uint8_t prefix[kMessagePrefixBytes] = {};
    uint64_t came = 0;
    uint64_t to_come = kMessagePrefixBytes;
  };

  void Begin(Counts* counts);
  void CountHeaders(Counts* counts);
  void TakePayload(absl::string_view payload);
  void TakeMessageBytes(absl::string_view bytes, Call* call);
  void EndFrame(Counts* counts);

  size_t preface_left_ = kPrefaceBytes;
  // The next frame's header, as far as it has arrived.
  uint8_t head_[kHeadBytes] = {};
  size_t head_bytes_ = 0;
  // The frame being received.
  bool in_frame_ = false;
  uint8_t type_ = 0;
  uint8_t flags_ = 0;
  uint32_t stream_ = 0;
  uint64_t payload_left_ = 0;
  // The header block being received.
  uint64_t header_block_bytes_ = 0;
  // The keys are stream numbers.
  absl::flat_hash_map<uint32_t, Call> calls_;
  uint64_t partial_bytes_ = 0;
};

// What each connection may send, in calls, without using its caller's limits: the PING, DATA and
// WINDOW_UPDATE frames of a connected node.
inline constexpr double kOwnBurst = 16;
inline constexpr double kOwnPerSecond = 2;
// The limit of one header block, for every caller. The metadata of a call may have 8 KiB
// (kMetadataBytesMax).
inline constexpr uint64_t kHeaderBlockBytesMax = 16 << 10;

// Thread safe.
class ConnectionWatch {
 public:
  // Receives the peer's address and the reason when a connection is ended.
  using Log = std::function<void(const std::string& address, const absl::Status& why)>;
  // `budget.Begin` must have admitted a connection of this source.
  ConnectionWatch(std::string address, std::string source, std::shared_ptr<AdmissionBudget> budget,
                  Log log);
  ~ConnectionWatch();
  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;

  // Counts bytes from the peer that gRPC has not read yet. Not OK: the connection must be closed
  // and gRPC must not get them.
  absl::Status OnRead(absl::string_view bytes, MonoTime now);
  // The connection has authenticated: from now on the limits of `caller` apply. Null: an
  // administrator, who has none. Only the first token counts. Not OK: the caller's limits are
  // exceeded and the connection must be closed.
  absl::Status Admit(std::shared_ptr<CallerTraffic> caller, MonoTime now);

 private:
  absl::Status Charge(const Http2Frames::Counts& counts, MonoTime now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Updates what the connection holds in the caller's limits.
  absl::Status Hold(int64_t open_calls, int64_t partial_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string address_;
  const std::string source_;
  const std::shared_ptr<AdmissionBudget> budget_;
  const Log log_;

  mutable absl::Mutex mutex_;
  Http2Frames frames_ ABSL_GUARDED_BY(mutex_);
  // What the connection did before it authenticated, in calls and in bytes of messages, and the
  // charge for it.
  double done_ ABSL_GUARDED_BY(mutex_) = 0;
  double done_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t charged_ ABSL_GUARDED_BY(mutex_);
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  // Why the connection must be closed, once its caller's limits were exceeded.
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  RateLimit own_ ABSL_GUARDED_BY(mutex_){kOwnBurst, kOwnPerSecond};
  // As reported to the caller's limits: calls beyond the first.
  int64_t open_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t partial_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<CallerTraffic> caller_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_CONNECTION_WATCH_H_
