#include "bench/floods/etcd_target.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/floods/target.h"
#include "proto/etcd.pb.h"

namespace cadre {
namespace {

constexpr char kEtcd[] = "/usr/bin/etcd";
constexpr char kRange[] = "/etcdserverpb.KV/Range";
constexpr char kPut[] = "/etcdserverpb.KV/Put";
constexpr char kWatch[] = "/etcdserverpb.Watch/Watch";
constexpr char kGrant[] = "/etcdserverpb.Lease/LeaseGrant";
constexpr char kKeepAlive[] = "/etcdserverpb.Lease/LeaseKeepAlive";
constexpr char kLeased[] = "leased";
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kEndTimeout = absl::Seconds(10);
constexpr absl::Duration kCallTimeout = absl::Seconds(3);
// As Cadre's nodes.
constexpr int64_t kLeaseSeconds = 10;
constexpr int kRenewMs = 3000;
constexpr int kLookMs = 50;
// As many and as large as the jobs in the list that Cadre is asked for.
constexpr int kKeys = 500;
constexpr size_t kValueBytes = 512;
constexpr int kUnread = 4096;

std::string Put(const std::string& key, const std::string& value, int64_t lease = 0) {
  etcdserverpb::PutRequest request;
  request.set_key(key);
  request.set_value(value);
  request.set_lease(lease);
  return request.SerializeAsString();
}

std::string Range(const std::string& key, const std::string& end = "") {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  request.set_range_end(end);
  return request.SerializeAsString();
}

// etcdserverpb.WatchRequest{create_request: {key: "k", range_end: "l", start_revision: 1}}: all
// that was ever written to the keys of the list.
std::string Watch() { return std::string("\x0a\x08\x0a\x01k\x12\x01l\x18\x01", 10); }

}  // namespace

EtcdTarget::~EtcdTarget() {
  stop_ = true;
  if (keeper_.joinable()) keeper_.join();
  if (process_ != nullptr) {
    process_->Kill(SIGKILL);
    process_->Wait(kEndTimeout);
  }
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

absl::Status EtcdTarget::StartProcess() {
  if (access(kEtcd, X_OK) != 0) {
    return absl::NotFoundError("needs Debian's etcd-server: there is no /usr/bin/etcd");
  }
  directory_ = MakeTempDir("floods");
  // A port that was free a moment ago may be another's now.
  absl::Status served;
  for (int i = 0; i < 5; ++i) {
    port_ = FreePort();
    const std::string client = absl::StrCat("http://127.0.0.1:", port_);
    const std::string peer = absl::StrCat("http://127.0.0.1:", FreePort());
    const std::string log = absl::StrCat(directory_, "/log", i);
    ASSIGN_OR_RETURN(process_, StartDaemon({kEtcd, "--name", "flooded", "--data-dir",
                                            absl::StrCat(directory_, "/data", i), "--logger", "zap",
                                            "--log-outputs", log, "--listen-client-urls", client,
                                            "--advertise-client-urls", client, "--listen-peer-urls",
                                            peer, "--initial-advertise-peer-urls", peer,
                                            "--initial-cluster", absl::StrCat("flooded=", peer)},
                                           log + ".out"));
    served = AwaitInLog(*process_, log, "serving client traffic", kStartTimeout).status();
    if (served.ok()) return absl::OkStatus();
    process_->Kill(SIGKILL);
    process_->Wait(kEndTimeout);
  }
  return served;
}

absl::Status EtcdTarget::Start() {
  RETURN_IF_ERROR(StartProcess());
  const CalledServer server = {port_, false, ""};
  launching_.emplace(server);
  kept_.emplace(server);
  fresh_.emplace(server);
  for (int i = 0; i < kKeys; ++i) {
    RETURN_IF_ERROR(
        kept_->Call(kPut, Put(absl::StrCat("k", i), std::string(kValueBytes, 'x')), kStartTimeout)
            .status());
  }
  RETURN_IF_ERROR(GrantLease());
  keeper_ = std::thread([this] { KeepLease(); });
  return absl::OkStatus();
}

absl::Status EtcdTarget::GrantLease() {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(kLeaseSeconds);
  ASSIGN_OR_RETURN(const std::string bytes,
                   kept_->Call(kGrant, request.SerializeAsString(), kStartTimeout));
  etcdserverpb::LeaseGrantResponse granted;
  if (!granted.ParseFromString(bytes)) return absl::InternalError("no lease");
  lease_ = granted.id();
  return kept_->Call(kPut, Put(kLeased, "", lease_), kStartTimeout).status();
}

void EtcdTarget::KeepLease() {
  HonestCaller caller({port_, false, ""});
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease_);
  while (!stop_) {
    [[maybe_unused]] const auto renewed =
        caller.Call(kKeepAlive, request.SerializeAsString(), kCallTimeout, /*one_reply=*/true);
    for (int waited = 0; waited < kRenewMs && !stop_; waited += kLookMs) poll(nullptr, 0, kLookMs);
  }
}

absl::Status EtcdTarget::Launch(int number, absl::Duration timeout) {
  const std::string key = absl::StrCat("launch-", number);
  launching_->Disconnect();
  RETURN_IF_ERROR(launching_->Call(kPut, Put(key, "value"), timeout).status());
  launching_->Disconnect();
  return launching_->Call(kRange, Range(key), timeout).status();
}

absl::Status EtcdTarget::KeptCall(absl::Duration timeout) {
  return kept_->Call(kRange, Range(kLeased), timeout).status();
}

absl::Status EtcdTarget::NewCall(absl::Duration timeout) {
  fresh_->Disconnect();
  return fresh_->Call(kRange, Range(kLeased), timeout).status();
}

std::vector<std::string> EtcdTarget::Lost() {
  if (process_->Wait(absl::ZeroDuration()).has_value()) return {"the server has ended"};
  HonestCaller caller({port_, false, ""});
  const auto bytes = caller.Call(kRange, Range(kLeased), kStartTimeout);
  if (!bytes.ok()) return {absl::StrCat("no answer afterwards: ", bytes.status().message())};
  etcdserverpb::RangeResponse found;
  if (found.ParseFromString(*bytes) && found.kvs_size() == 1) return {};
  return {"the lease has ended"};
}

std::vector<FloodCase> EtcdTarget::Cases() const {
  FloodOptions to;
  to.port = port_;
  to.path = kRange;
  std::vector<FloodCase> cases = Http2Cases(to, "no token");
  FloodCase one;
  one.token = "no token";
  one.transport = "clear";
  one.options = to;
  const auto append = [&](const std::string& name, FloodKind kind, const char* path, int in_flight,
                          std::function<std::string(uint64_t)> message) {
    one.name = name;
    one.options.kind = kind;
    one.options.path = path;
    one.options.in_flight = in_flight;
    one.options.message = std::move(message);
    AppendFromFewAndMany(one, &cases);
  };
  const auto list = [](uint64_t) { return Range("k", "l"); };
  append("lists of keys", FloodKind::kCalls, kRange, 64, list);
  append("lists of keys, windows of 0", FloodKind::kUnreadAnswers, kRange, kUnread, list);
  append("lists of keys, socket not read", FloodKind::kUnreadSocket, kRange, kUnread, list);
  append("writes", FloodKind::kCalls, kPut, 64,
         [](uint64_t call) { return Put(absl::StrCat("flood-", call), "value"); });
  append("writes of 500 KiB", FloodKind::kCalls, kPut, 4, [](uint64_t call) {
    return Put(absl::StrCat("flood-", call % 16), std::string(size_t{500} << 10, 'x'));
  });
  one.options.half_close = false;
  const auto watch = [](uint64_t) { return Watch(); };
  append("watches, socket not read", FloodKind::kUnreadSocket, kWatch, kUnread, watch);
  return cases;
}

}  // namespace cadre
