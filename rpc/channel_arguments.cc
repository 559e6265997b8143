#include "rpc/channel_arguments.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/support/log.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr off_t kPemBytesMax = 1 << 20;

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Calls set(name, value) for what both sides set alike.
template <typename Set>
void SetSharedArguments(const ClientTiming& timing, const Set& set) {
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMessageBytesMax);
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, kMessageBytesMax);
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

struct PemFiles {
  std::string ca;
  std::string certificate;
  std::string key;
};

absl::StatusOr<std::string> ReadOpenPem(int fd, const std::string& path, bool secret) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kPemBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: ", path, " must be a regular file of at most 1 MiB"));
  }
  if (secret && (info.st_mode & 077) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: ", path, " is open to other users: chmod 600 ", path));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = read(fd, &content[size], content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  content.resize(size);
  if (content.find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("TLS: ", path, " is not in PEM format"));
  }
  return content;
}

absl::StatusOr<std::string> ReadPem(const std::string& path, bool secret) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string reason(absl::ErrnoToStatus(errno, "").message());
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: cannot open ", path, reason,
                     "; the directory must hold ca.pem, cert.pem and key.pem"));
  }
  absl::StatusOr<std::string> content = ReadOpenPem(fd, path, secret);
  close(fd);
  return content;
}

absl::StatusOr<PemFiles> ReadPemFiles(const std::string& directory) {
  PemFiles files;
  ASSIGN_OR_RETURN(files.ca, ReadPem(directory + "/ca.pem", false));
  ASSIGN_OR_RETURN(files.certificate, ReadPem(directory + "/cert.pem", false));
  ASSIGN_OR_RETURN(files.key, ReadPem(directory + "/key.pem", true));
  return files;
}

void DropLine(gpr_log_func_args*) {}

}  // namespace

void SetServerArguments(grpc::ServerBuilder& builder) {
  SetSharedArguments(
      {}, [&builder](const char* name, int value) { builder.AddChannelArgument(name, value); });
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  // Two servers on one port would each get half of the nodes.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Millis(kPingIntervalMin));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnectionMax);
}

grpc::ChannelArguments ClientChannelArguments(const ClientTiming& timing) {
  grpc::ChannelArguments arguments;
  SetSharedArguments(timing,
                     [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Millis(kReconnectBackoffMin));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Millis(kReconnectBackoffMax));
  // Despite its name this bounds one connection attempt, from socket to HTTP/2 settings.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Millis(timing.connect_timeout));
  arguments.SetInt(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, Millis(kConnectTimeout));
  return arguments;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TransportSecurity& security) {
  if (security.tls_dir.empty()) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(PemFiles files, ReadPemFiles(security.tls_dir));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(files.ca);
  options.pem_key_cert_pairs.push_back({std::move(files.key), std::move(files.certificate)});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TransportSecurity& security) {
  if (security.tls_dir.empty()) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(PemFiles files, ReadPemFiles(security.tls_dir));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(files.ca);
  options.pem_private_key = std::move(files.key);
  options.pem_cert_chain = std::move(files.certificate);
  return grpc::SslCredentials(options);
}

void QuietGrpcLog() {
  if (getenv("GRPC_VERBOSITY") != nullptr || getenv("GRPC_TRACE") != nullptr) return;
  gpr_set_log_function(DropLine);
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kStatusTextBytesMax)));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace cadre
