#include "rpc/channels.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <stdlib.h>

#include "rpc/limits.h"

namespace cadre::rpc {
namespace {

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Calls set(name, value) for what both sides set alike.
template <typename Set>
void SetSharedArguments(const ClientTiming& timing, const Set& set) {
  set(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  set(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(timing.keepalive_time));
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(timing.keepalive_timeout));
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // 0: any number; a quiet stream is kept alive by them.
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // It would send a ping with most renewals, and both sides would wake up once more for its answer.
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  // An http_proxy in a cluster's environment is for the outside world.
  set(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
}

void DropLine(gpr_log_func_args*) {}

}  // namespace

void SetServerArguments(grpc::ServerBuilder& builder) {
  SetSharedArguments(
      {}, [&builder](const char* name, int value) { builder.AddChannelArgument(name, value); });
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  // Who has not asked for a list takes no more than kMessageBytesMax.
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

}  // namespace cadre::rpc
