#include "rendezvous/log/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "proto/etcd.grpc.pb.h"
#include "rpc/channels.h"
#include "rpc/status_details.h"
#include "rpc/tls/credentials.h"

namespace cadre::log {
namespace {

// The size of the largest page of the log; etcd itself sends up to 2 GiB.
constexpr int kReplyBytesMax = 256 << 20;
constexpr size_t kReasonBytesMax = 300;
constexpr absl::Duration kEtcdConnectTimeout = absl::Seconds(1);
// Shorter than a call, so that another member can be tried when one is silent.
constexpr absl::Duration kMemberTimeout = absl::Seconds(1);

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kReplyBytesMax);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Despite its name it limits one connection attempt.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Millis(kEtcdConnectTimeout));
  // Detects a connection whose other end is gone. Only during calls, because etcd closes
  // connections that ping otherwise.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(rpc::kKeepaliveTime));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(kEtcdCallTimeout));
  return arguments;
}

std::string Reason(const grpc::Status& status) {
  return EtcdReason(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

bool MayAnswerElsewhere(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace

std::string EtcdReason(absl::StatusCode code, const std::string& text) {
  switch (rpc::ConnectErrorOf(text)) {
    case rpc::ConnectError::kRefused:
      return "connection refused";
    // gRPC alternates between the errors of its two lookups.
    case rpc::ConnectError::kUnknownName:
      return "the name does not resolve";
    case rpc::ConnectError::kTimedOut:
    case rpc::ConnectError::kHandshakeTimedOut:
      return "no answer";
    default:
      break;
  }
  if (code == absl::StatusCode::kDeadlineExceeded) return "no answer";
  return text.substr(0, kReasonBytesMax);
}

struct EtcdClient::Impl {
  // A connection to one member.
  struct Member {
    std::string name;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  };

  Impl(const EtcdOptions& options, std::shared_ptr<grpc::ChannelCredentials> credentials)
      : names(options.endpoints),
        security(options.security),
        credentials(std::move(credentials)),
        members(names.size()) {}

  std::shared_ptr<const Member> Connect(size_t index) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<const Member>& member = members[index];
    if (member == nullptr) {
      // With the current TLS files; while they are being replaced, with the old ones.
      auto renewed = rpc::MakeChannelCredentials(security);
      if (renewed.ok()) credentials = *std::move(renewed);
      const auto channel = grpc::CreateCustomChannel(names[index], credentials, Arguments());
      member = std::make_shared<Member>(Member{names[index], etcdserverpb::KV::NewStub(channel),
                                               etcdserverpb::Lease::NewStub(channel)});
    }
    return member;
  }

  // A connection that failed is not used again: gRPC would fail calls at once, and hardly
  // reconnects while no call waits.
  void Forget(size_t index, const std::shared_ptr<const Member>& failed) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (members[index] == failed) members[index].reset();
  }

  // Tries the call at one member after the other, beginning with the one that answered last.
  template <typename Call>
  absl::Status Try(const Call& call) {
    const MonoTime until = MonoNow() + kEtcdCallTimeout;
    const size_t begin = current;
    grpc::Status status;
    std::string name;
    for (size_t i = 0; i < names.size(); ++i) {
      const absl::Duration left = until - MonoNow();
      if (i > 0 && left <= absl::ZeroDuration()) break;
      const size_t index = (begin + i) % names.size();
      const std::shared_ptr<const Member> member = Connect(index);
      grpc::ClientContext context;
      const absl::Duration limit = names.size() == 1 ? left : std::min(left, kMemberTimeout);
      context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(limit));
      status = call(*member, &context);
      name = member->name;
      if (!MayAnswerElsewhere(status)) {
        current = index;
        break;
      }
      Forget(index, member);
      // The next call begins with another member than the one that just failed.
      current = (index + 1) % names.size();
    }
    if (status.ok()) return absl::OkStatus();
    const std::string text = absl::StrCat("etcd at ", name, ": ", Reason(status));
    if (MayAnswerElsewhere(status)) return absl::UnavailableError(text);
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
  }

  const std::vector<std::string> names;
  const rpc::TransportSecurity security;
  std::atomic<size_t> current{0};
  std::mutex mutex;
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // Null: not connected.
  std::vector<std::shared_ptr<const Member>> members;
};

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Make(const EtcdOptions& options) {
  rpc::QuietGrpcLog();
  rpc::KeepGrpcUp();
  ASSIGN_OR_RETURN(const auto credentials, rpc::MakeChannelCredentials(options.security));
  if (options.endpoints.empty()) return absl::InvalidArgumentError("no endpoint of etcd is given");
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::make_unique<Impl>(options, credentials)));
}

EtcdClient::EtcdClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EtcdClient::~EtcdClient() = default;

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request) {
  etcdserverpb::RangeResponse response;
  RETURN_IF_ERROR(impl_->Try([&](const Impl::Member& member, grpc::ClientContext* context) {
    return member.kv->Range(context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse response;
  RETURN_IF_ERROR(impl_->Try([&](const Impl::Member& member, grpc::ClientContext* context) {
    return member.kv->Txn(context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::Grant(absl::Duration ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1))));
  etcdserverpb::LeaseGrantResponse response;
  RETURN_IF_ERROR(impl_->Try([&](const Impl::Member& member, grpc::ClientContext* context) {
    return member.lease->LeaseGrant(context, request, &response);
  }));
  return response;
}

absl::StatusOr<absl::Duration> EtcdClient::KeepAlive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  RETURN_IF_ERROR(impl_->Try([&](const Impl::Member& member, grpc::ClientContext* context) {
    const auto stream = member.lease->LeaseKeepAlive(context);
    const bool answered = stream->Write(request) && stream->Read(&response);
    stream->WritesDone();
    if (answered) {
      // The stream is not needed any more.
      context->TryCancel();
      stream->Finish();
      return grpc::Status::OK;
    }
    const grpc::Status status = stream->Finish();
    if (!status.ok()) return status;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the lease was not renewed");
  }));
  return absl::Seconds(std::max<int64_t>(response.ttl(), 0));
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return impl_->Try([&](const Impl::Member& member, grpc::ClientContext* context) {
    return member.lease->LeaseRevoke(context, request, &response);
  });
}

void PutKey(absl::string_view key, std::string value, int64_t lease,
            etcdserverpb::RequestOp* request) {
  etcdserverpb::PutRequest* put = request->mutable_request_put();
  put->set_key(std::string(key));
  put->set_value(std::move(value));
  put->set_lease(lease);
}

void GetKey(absl::string_view key, etcdserverpb::RequestOp* request) {
  request->mutable_request_range()->set_key(std::string(key));
}

void CreatedAt(absl::string_view key, int64_t revision, etcdserverpb::Compare* compare) {
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(std::string(key));
  compare->set_create_revision(revision);
}

void ChangedAt(absl::string_view key, int64_t revision, etcdserverpb::Compare* compare) {
  compare->set_target(etcdserverpb::Compare::MOD);
  compare->set_key(std::string(key));
  compare->set_mod_revision(revision);
}

}  // namespace cadre::log
