#include "rendezvous/service/connection_watch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cadre::service {
namespace {

// In calls, the unit of AdmissionLimits.
constexpr double kHeaderBytesOfACall = 512;
constexpr double kDataBytesOfACall = 4 << 10;
constexpr double kSmallFramesOfACall = 16;

double Calls(const Http2Frames::Counts& counts) {
  return static_cast<double>(counts.calls) +
         static_cast<double>(counts.header_bytes) / kHeaderBytesOfACall;
}

// The cost for an unauthenticated connection, without the bytes of its messages.
double CostUnadmitted(const Http2Frames::Counts& counts) {
  return Calls(counts) + static_cast<double>(counts.control) +
         static_cast<double>(counts.small) / kSmallFramesOfACall;
}

// The cost of frames that do not begin a call, for an authenticated connection: gRPC handles them
// for a fraction of a call's cost.
double SmallFrames(const Http2Frames::Counts& counts) {
  return static_cast<double>(counts.control) / 8 + static_cast<double>(counts.small) / 64;
}

}  // namespace

ConnectionWatch::ConnectionWatch(std::string address, std::string source,
                                 std::shared_ptr<AdmissionBudget> budget, Log log)
    : address_(std::move(address)),
      source_(std::move(source)),
      budget_(std::move(budget)),
      log_(std::move(log)),
      charged_(budget_->limits().connection) {}

ConnectionWatch::~ConnectionWatch() {
  const absl::MutexLock lock(&mutex_);
  if (!admitted_) budget_->End(source_, charged_, /*admitted=*/false, MonoNow());
  if (caller_ == nullptr) return;
  Hold(0, 0).IgnoreError();
  caller_->End();
}

absl::Status ConnectionWatch::OnRead(absl::string_view bytes, MonoTime now) {
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    // An administrator's connection has no limits.
    if (admitted_ && caller_ == nullptr) return absl::OkStatus();
    const Http2Frames::Counts counts = frames_.Read(bytes);
    if (counts.header_block_bytes > kHeaderBlockBytesMax) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("a call's headers have more than ", kHeaderBlockBytesMax, " bytes"));
    } else if (!refused_.ok()) {
      status = refused_;
    } else if (!admitted_) {
      status = Charge(counts, now);
    } else {
      const double small = SmallFrames(counts);
      const double own = std::min(small, std::max(own_.Left(now), 0.0));
      own_.Charge(own, now);
      status = caller_->Take(Calls(counts) + small - own,
                             static_cast<double>(counts.ended_call_bytes), now);
      // The first open call is a node's stream.
      const auto open = static_cast<int64_t>(frames_.open_calls());
      const absl::Status holds =
          Hold(std::max<int64_t>(open - 1, 0), static_cast<int64_t>(frames_.partial_bytes()));
      if (status.ok()) status = holds;
    }
  }
  if (!status.ok() && log_) log_(address_, status);
  return status;
}

absl::Status ConnectionWatch::Charge(const Http2Frames::Counts& counts, MonoTime now) {
  done_ += CostUnadmitted(counts);
  done_bytes_ += static_cast<double>(counts.data_bytes);
  const double cost = done_ + done_bytes_ / kDataBytesOfACall;
  const int64_t more = static_cast<int64_t>(std::ceil(cost)) - charged_;
  if (more <= 0) return absl::OkStatus();
  if (!budget_->Spend(source_, more, now)) {
    return absl::ResourceExhaustedError(
        "the client sent too much before it showed a token; the connection is closed");
  }
  charged_ += more;
  return absl::OkStatus();
}

absl::Status ConnectionWatch::Hold(int64_t open_calls, int64_t partial_bytes) {
  if (caller_ == nullptr) return absl::OkStatus();
  const int64_t more_calls = open_calls - open_calls_;
  const int64_t more_bytes = partial_bytes - partial_bytes_;
  open_calls_ = open_calls;
  partial_bytes_ = partial_bytes;
  return caller_->Hold(more_calls, more_bytes);
}

absl::Status ConnectionWatch::Admit(std::shared_ptr<CallerTraffic> caller, MonoTime now) {
  const absl::MutexLock lock(&mutex_);
  if (admitted_) return absl::OkStatus();
  bool often = false;
  if (caller != nullptr) {
    // Up to this amount the source was charged for the connection, and gets it back.
    const double beyond = std::max(done_ - static_cast<double>(budget_->limits().connection), 0.0);
    // Otherwise each new connection would allow some more calls.
    const absl::Status may = caller->Begin(beyond, done_bytes_, now, &often);
    if (!may.ok()) {
      refused_ = may;
      return may;
    }
  }
  admitted_ = true;
  caller_ = std::move(caller);
  budget_->End(source_, charged_, /*admitted=*/!often, now);
  return absl::OkStatus();
}

namespace {

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kResetStream = 3;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;

constexpr uint8_t kEndStream = 0x1;
// Padding, which no gRPC client sends, is counted as bytes of a message that never ends.
constexpr uint8_t kPadded = 0x8;

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

}  // namespace

Http2Frames::Counts Http2Frames::Read(absl::string_view bytes) {
  Counts counts;
  const size_t preface = std::min(preface_left_, bytes.size());
  preface_left_ -= preface;
  bytes.remove_prefix(preface);
  while (!bytes.empty()) {
    if (in_frame_) {
      const size_t some = std::min<uint64_t>(payload_left_, bytes.size());
      TakePayload(bytes.substr(0, some));
      bytes.remove_prefix(some);
    } else {
      const size_t some = std::min(kHeadBytes - head_bytes_, bytes.size());
      std::memcpy(head_ + head_bytes_, bytes.data(), some);
      head_bytes_ += some;
      bytes.remove_prefix(some);
      if (head_bytes_ == kHeadBytes) Begin(&counts);
    }
    if (in_frame_ && payload_left_ == 0) EndFrame(&counts);
  }
  return counts;
}

void Http2Frames::Begin(Counts* counts) {
  head_bytes_ = 0;
  in_frame_ = true;
  payload_left_ = uint64_t{head_[0]} << 16 | uint64_t{head_[1]} << 8 | head_[2];
  type_ = head_[3];
  flags_ = head_[4];
  stream_ = BigEndian(head_ + 5) & 0x7fffffff;
  switch (type_) {
    case kData:
      ++counts->small;
      counts->data_bytes += payload_left_;
      return;
    case kWindowUpdate:
      ++counts->small;
      return;
    case kHeaders:
      header_block_bytes_ = 0;
      calls_.try_emplace(stream_);
      return CountHeaders(counts);
    case kContinuation:
      return CountHeaders(counts);
    case kResetStream:
      ++counts->calls;
      return;
    default:
      ++counts->control;
      return;
  }
}

void Http2Frames::CountHeaders(Counts* counts) {
  ++counts->calls;
  counts->header_bytes += payload_left_;
  header_block_bytes_ += payload_left_;
  counts->header_block_bytes = std::max(counts->header_block_bytes, header_block_bytes_);
}

void Http2Frames::TakePayload(absl::string_view payload) {
  payload_left_ -= payload.size();
  if (type_ != kData) return;
  const auto call = calls_.find(stream_);
  if (call == calls_.end()) return;
  call->second.bytes += payload.size();
  if ((flags_ & kPadded) == 0) return TakeMessageBytes(payload, &call->second);
  call->second.came += payload.size();
  partial_bytes_ += payload.size();
}

void Http2Frames::TakeMessageBytes(absl::string_view bytes, Call* call) {
  while (!bytes.empty()) {
    const uint64_t some = std::min<uint64_t>(call->to_come, bytes.size());
    if (call->came < kMessagePrefixBytes) {
      const uint64_t of_prefix = std::min<uint64_t>(some, kMessagePrefixBytes - call->came);
      std::memcpy(call->prefix + call->came, bytes.data(), of_prefix);
    }
    call->came += some;
    call->to_come -= some;
    partial_bytes_ += some;
    bytes.remove_prefix(some);
    if (call->to_come == 0 && call->came == kMessagePrefixBytes) {
      call->to_come = BigEndian(call->prefix + 1);
    }
    if (call->to_come > 0) continue;
    partial_bytes_ -= call->came;
    call->came = 0;
    call->to_come = kMessagePrefixBytes;
  }
}

void Http2Frames::EndFrame(Counts* counts) {
  in_frame_ = false;
  const bool ends = type_ == kResetStream ||
                    ((type_ == kData || type_ == kHeaders) && (flags_ & kEndStream) != 0);
  if (!ends) return;
  const auto call = calls_.find(stream_);
  if (call == calls_.end()) return;
  counts->ended_call_bytes += std::min(call->second.bytes, kCallBytesMax);
  partial_bytes_ -= call->second.came;
  calls_.erase(call);
}

}  // namespace cadre::service
