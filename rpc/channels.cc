// gRPC code that both sides share: channel settings, conversion of statuses, and timers.
#include "rpc/channels.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "base/clock.h"
#include "rpc/message_limits.h"
#include "rpc/status_details.h"

// An internal function of gRPC (src/core/lib/iomgr/timer.h) without a public header.
void grpc_kick_poller();

namespace cadre::rpc {
namespace {

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Calls set(name, value) for the settings that both sides share.
template <typename Set>
void SetSharedArguments(const ClientTiming& timing, const Set& set) {
  set(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  set(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(timing.keepalive_time));
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(timing.keepalive_timeout));
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // 0: no limit; pings keep a quiet stream alive.
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // It would send a ping with most lease renewals, and each answer would wake both sides once more.
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  // Compression is off in both directions: a message of 1 MiB may inflate to 1 GiB, before its
  // sender is authenticated.
  set(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // An http_proxy of a cluster's environment is meant for connections to the outside.
  set(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
}

void DropLine(gpr_log_func_args*) {}

}  // namespace

void SetServerArguments(grpc::ServerBuilder& builder) {
  SetSharedArguments(
      {}, [&builder](const char* name, int value) { builder.AddChannelArgument(name, value); });
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  // Clients that have not requested a list accept kMessageBytesMax at most.
  builder.SetMaxSendMessageSize(kListBytesMax);
  // Two servers on one port would each get half of the nodes.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Millis(kPingIntervalMin));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnectionMax);
}

grpc::ChannelArguments ClientChannelArguments(const ClientTiming& timing, int answer_bytes_max) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(answer_bytes_max);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  SetSharedArguments(timing,
                     [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Millis(kReconnectBackoffMin));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Millis(kReconnectBackoffMax));
  // Despite its name this bounds one connection attempt, from socket to HTTP/2 settings.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Millis(timing.connect_timeout));
  arguments.SetInt(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, Millis(kConnectTimeout));
  return arguments;
}

void QuietGrpcLog() {
  if (getenv("GRPC_VERBOSITY") != nullptr || getenv("GRPC_TRACE") != nullptr) return;
  gpr_set_log_function(DropLine);
}

void KeepGrpcUp() {
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();
    return true;
  }();
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kStatusTextBytesMax)),
                      SerializedDetails(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return WithSerializedDetails(
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()),
      status.error_details());
}

namespace {

// A smaller difference comes from clock adjustment or an interrupted thread.
constexpr int64_t kSetBackUs = 100000;

// So low that the first call never counts as a change.
std::atomic<int64_t> last_difference_us{std::numeric_limits<int64_t>::min() + kSetBackUs};

}  // namespace

void WakeGrpcTimersIfClockWasSetBack() {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t difference_us =
      int64_t{wall.tv_sec} * 1000000 + wall.tv_nsec / 1000 - MonoNow().micros();
  const int64_t before_us = last_difference_us.exchange(difference_us);
  if (difference_us < before_us - kSetBackUs) grpc_kick_poller();
}

}  // namespace cadre::rpc
