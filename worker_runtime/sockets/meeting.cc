#include "worker_runtime/sockets/meeting.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/keyed_digest.h"
#include "base/peer_user.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/token.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {
namespace {

// The size of an endpoint's text when the ranks of a group exchange it.
constexpr size_t kEndpointBytes = 80;
// For reading a key that exists.
constexpr std::chrono::nanoseconds kStorePatience = std::chrono::seconds(10);

// Returns a key that is the same on all ranks. The first rank to call this creates it.
Result<std::string> SharedKey(Worker& worker, const std::string& name) {
  const std::string own = RandomToken();
  Result<std::string> key = worker.CompareAndSet(name, "", own);
  if (key.ok()) return own;
  if (key.status().code() != StatusCode::kFailedPrecondition) return key.status();
  return worker.Get(name, kStorePatience);
}

Result<HandshakeParameters> ReadHandshakeParameters(Worker& worker, const std::string& name) {
  HandshakeParameters parameters;
  ASSIGN_OR_RETURN(parameters.encrypts, wire::WantsEncryption());
  ASSIGN_OR_RETURN(parameters.key, SharedKey(worker, name));
  return parameters;
}

}  // namespace

Result<ConnectedRanks> MeetInStore(Worker& worker, const std::string& name,
                                   Span<const Purpose> purposes, std::chrono::nanoseconds timeout) {
  if (name.empty() || name.size() > kMaxCommunicatorName) {
    return InvalidArgumentError(absl::StrCat("a communicator's name must have 1 to ",
                                             kMaxCommunicatorName, " bytes, not ", name.size()));
  }
  const WorkerPlace& place = worker.place();
  // Counts how often this rank has opened a communicator of that name: equal on all ranks.
  ASSIGN_OR_RETURN(const int64_t opened,
                   worker.Add(absl::StrCat("sockets/", name, "/opened/", place.rank), 1));
  const std::string prefix = absl::StrCat("sockets/", name, "/", opened, "/");
  ASSIGN_OR_RETURN(const ScopedFd listener, Listen(place.address));
  RETURN_IF_ERROR(worker.Set(absl::StrCat(prefix, place.rank), EndpointOf(listener)));
  MeshRequest request;
  request.rank = place.rank;
  request.size = place.world_size;
  request.purposes.assign(purposes.begin(), purposes.end());
  request.deadline = MonoNow() + timeout;
  ASSIGN_OR_RETURN(request.parameters,
                   ReadHandshakeParameters(worker, absl::StrCat(prefix, "key")));
  for (int peer = 0; peer < place.world_size; ++peer) {
    const std::chrono::nanoseconds left = absl::ToChronoNanoseconds(request.deadline - MonoNow());
    ASSIGN_OR_RETURN(std::string endpoint, worker.Get(absl::StrCat(prefix, peer), left));
    request.endpoints.push_back(std::move(endpoint));
  }
  // A rank may die while others still connect, and with it the generation. A store that is
  // temporarily unreachable is no reason to give up.
  request.check = [&]() -> Status {
    const Status status =
        worker.Get(absl::StrCat(prefix, place.rank), std::chrono::seconds(1)).status();
    return status.code() == StatusCode::kAborted ? status : OkStatus();
  };
  ASSIGN_OR_RETURN(Mesh mesh, ConnectMesh(request, listener));
  return ConnectedRanks{std::move(mesh), request.parameters.key};
}

Result<std::unique_ptr<PeerLinks>> ConnectPeerLinks(Worker& worker, const std::string& name,
                                                    std::chrono::nanoseconds timeout) {
  ASSIGN_OR_RETURN(ConnectedRanks met, MeetInStore(worker, name, {Purpose::kControl}, timeout));
  return std::make_unique<PeerLinks>(std::move(met.mesh.at(Purpose::kControl)));
}

Result<wire::Connection> MeetPair(Worker& worker, const PairMeeting& pair) {
  const int peer = 1 - pair.rank;
  const auto key_of = [&pair](int rank) { return absl::StrCat(pair.name, "/", rank); };
  ASSIGN_OR_RETURN(const ScopedFd listener, Listen(worker.place().address));
  RETURN_IF_ERROR(worker.Set(key_of(pair.rank), EndpointOf(listener)));
  MeshRequest request;
  request.rank = pair.rank;
  request.size = 2;
  request.purposes = {Purpose::kMessages};
  request.endpoints.resize(2);
  request.deadline = pair.deadline;
  request.check = pair.check;
  ASSIGN_OR_RETURN(request.parameters,
                   ReadHandshakeParameters(worker, absl::StrCat(pair.name, "/key")));
  request.endpoints[pair.rank] = EndpointOf(listener);
  ASSIGN_OR_RETURN(request.endpoints[peer], pair.await(key_of(peer)));
  ASSIGN_OR_RETURN(Mesh mesh, ConnectMesh(request, listener));
  return std::move(mesh.at(Purpose::kMessages)[peer]);
}

Result<ConnectedRanks> MeetInGroup(Communicator& parent, const GroupMeeting& group,
                                   Span<const Purpose> purposes) {
  const int size = static_cast<int>(group.members.size());
  Result<ScopedFd> listener = UnavailableError("in no group");
  std::string own;
  if (size > 1) listener = Listen(group.address);
  // A rank that cannot listen still takes part, so that all ranks fail for the same reason.
  if (listener.ok()) own = EndpointOf(*listener);
  own.resize(kEndpointBytes);
  std::string all(kEndpointBytes * parent.size(), '\0');
  // The wait has no limit, because the all-gather uses this memory until its turn has come and
  // passed.
  RETURN_IF_ERROR(parent
                      .AllGather({own.data(), own.size(), DataType::kUint8},
                                 {all.data(), all.size(), DataType::kUint8})
                      ->Wait(std::chrono::nanoseconds::max()));
  if (size < 2) return ConnectedRanks{};
  RETURN_IF_ERROR(listener.status());
  MeshRequest request;
  request.size = size;
  request.purposes.assign(purposes.begin(), purposes.end());
  request.deadline = MonoNow() + group.timeout;
  // The groups of one split have different first members.
  ASSIGN_OR_RETURN(request.parameters.encrypts, wire::WantsEncryption());
  request.parameters.key = KeyedDigest(group.key, absl::StrCat("group of rank ", group.members[0]));
  for (int member = 0; member < size; ++member) {
    const int rank = group.members[member];
    if (rank == parent.rank()) request.rank = member;
    request.endpoints.emplace_back(all.c_str() + rank * kEndpointBytes);
    if (request.endpoints.back().empty()) {
      return UnavailableError(absl::StrCat("rank ", member, " could not listen for the others"));
    }
  }
  request.check = group.check;
  ASSIGN_OR_RETURN(Mesh mesh, ConnectMesh(request, *listener));
  return ConnectedRanks{std::move(mesh), request.parameters.key};
}

namespace {

constexpr absl::Duration kCheckInterval = absl::Seconds(1);
constexpr int kPollMillis = 1000;
// The pause before a rank that closed a connection is called again.
constexpr absl::Duration kRedialPause = absl::Milliseconds(50);
// The number of connections accepted at once, so that existing ones are served in between.
constexpr int kAccepts = 16;

// A connection that is not complete yet.
struct Pending {
  ScopedFd socket;
  Handshake handshake;
  MonoTime give_up;
  bool connected = false;
  std::string received = "";
  int peer = -1;  // the rank that this rank connects to; -1: an accepted connection
  Purpose purpose = Purpose::kControl;
};

// A connection that is to be attempted again.
struct Redial {
  int peer;
  Purpose purpose;
  MonoTime at;
};

bool IsOutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Status OutOfDescriptors(int error) {
  return ResourceExhaustedError(
      absl::StrCat("no socket for a connection between ranks: ", ErrnoText(error),
                   "; `ulimit -n` says how many files a process may open"));
}

class Connecting {
 public:
  Connecting(const MeshRequest& request, const ScopedFd& listener)
      : request_(request), listener_(listener) {
    for (const Purpose purpose : request.purposes) {
      mesh_[purpose].resize(static_cast<size_t>(request.size));
    }
    missing_ = request.purposes.size() * static_cast<size_t>(request.size - 1);
  }

  Result<Mesh> Run();

 private:
  Status CallRank(int peer, Purpose purpose);
  Status CallAgain();
  Status Accept();
  void MakeRoom();
  // Advances one connection. Returns false if it is no longer pending.
  Result<bool> Serve(Pending& pending, short events);
  Result<bool> ContinueHandshake(Pending& pending);
  Result<bool> Lost(Pending& pending, int error);
  Status Complete(Pending& pending);
  Status Advance();
  Status Missing() const;

  const MeshRequest& request_;
  const ScopedFd& listener_;
  Mesh mesh_;
  size_t missing_ = 0;
  std::list<Pending> pending_;
  std::vector<Redial> redials_;
  // Since when a rank has closed connections one after another, and how many.
  struct Dropped {
    MonoTime since;
    int calls = 0;
  };
  std::map<std::pair<int, Purpose>, Dropped> dropped_;
  // Why this rank refused the last accepted connection that it refused; empty if it refused none.
  std::string refusal_;
};

Status Connecting::CallRank(int peer, Purpose purpose) {
  const std::string& endpoint = request_.endpoints[peer];
  errno = 0;
  Result<ScopedFd> socket = StartConnecting(endpoint);
  if (!socket.ok() && IsOutOfDescriptors(errno)) return OutOfDescriptors(errno);
  if (!socket.ok()) {
    return Status(socket.status().code(),
                  absl::StrCat("rank ", peer, " cannot be reached: ", socket.status().message()));
  }
  ASSIGN_OR_RETURN(std::string nonce, HandshakeNonce());
  pending_.push_back(
      {*std::move(socket),
       Handshake::Call(request_.parameters, request_.rank, peer, purpose, std::move(nonce)),
       request_.deadline, false, "", peer, purpose});
  return OkStatus();
}

Status Connecting::CallAgain() {
  const MonoTime now = MonoNow();
  const std::vector<Redial> redials = std::exchange(redials_, {});
  for (const Redial& redial : redials) {
    if (now < redial.at) {
      redials_.push_back(redial);
    } else {
      RETURN_IF_ERROR(CallRank(redial.peer, redial.purpose));
    }
  }
  return OkStatus();
}

void Connecting::MakeRoom() {
  const auto oldest = [this](bool only_silent) {
    return std::find_if(pending_.begin(), pending_.end(), [only_silent](const Pending& one) {
      return one.peer < 0 && (!only_silent || one.handshake.peer() < 0);
    });
  };
  auto dropped = oldest(/*only_silent=*/true);
  if (dropped == pending_.end()) dropped = oldest(/*only_silent=*/false);
  if (dropped != pending_.end()) pending_.erase(dropped);
}

Status Connecting::Accept() {
  for (int i = 0; i < kAccepts; ++i) {
    ScopedFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) {
      return IsOutOfDescriptors(errno) ? OutOfDescriptors(errno) : OkStatus();
    }
    // All ranks run as one user. A process of another user of this machine could only occupy places
    // meant for ranks.
    if (!MayServe(PeerUserOf(socket.get()))) continue;
    if (pending_.size() >= missing_ + kMaxPendingConnections) MakeRoom();
    ASSIGN_OR_RETURN(std::string nonce, HandshakeNonce());
    pending_.push_back(
        {std::move(socket),
         Handshake::Answer(request_.parameters, request_.rank, request_.size, std::move(nonce)),
         MonoNow() + kHandshakeTimeout, true});
  }
  return OkStatus();
}

Status Connecting::Complete(Pending& pending) {
  const auto connections = mesh_.find(pending.handshake.purpose());
  if (connections == mesh_.end()) return OkStatus();
  RETURN_IF_ERROR(pending.handshake.CheckEncryption());
  wire::Connection& connection = connections->second[pending.handshake.peer()];
  // The peer may have connected again because it did not see its first connection accepted. The
  // last one counts.
  if (!connection.ok()) --missing_;
  ConfigureSocket(pending.socket);
  if (pending.handshake.purpose() == Purpose::kControl) DetectUnacknowledgedData(pending.socket);
  connection = wire::Connection(std::move(pending.socket), pending.handshake.MakeRecordKeys());
  return OkStatus();
}

// The peer may have dropped the connection to make room for others, so the connecting side retries.
Result<bool> Connecting::Lost(Pending& pending, int error) {
  if (pending.peer < 0) return false;
  if (pending.connected && (error == 0 || error == ECONNRESET || error == EPIPE)) {
    const MonoTime now = MonoNow();
    Dropped& dropped = dropped_[{pending.peer, pending.purpose}];
    if (dropped.calls++ == 0) dropped.since = now;
    if (now - dropped.since >= kHandshakeTimeout) {
      return UnavailableError(absl::StrCat(
          "rank ", pending.peer, " at ", request_.endpoints[pending.peer],
          " accepted the connection ", dropped.calls, " times in ",
          absl::ToInt64Seconds(kHandshakeTimeout),
          " s and closed it each time: it did not "
          "recognize this rank's hello, which was altered on its way or is of another version"));
    }
    redials_.push_back({pending.peer, pending.purpose, MonoNow() + kRedialPause});
    return false;
  }
  return UnavailableError(absl::StrCat("rank ", pending.peer, " cannot be reached at ",
                                       request_.endpoints[pending.peer], ": ", ErrnoText(error)));
}

Result<bool> Connecting::Serve(Pending& pending, short events) {
  if (events == 0) return true;
  if (!pending.connected) {
    const int error = ErrorOf(pending.socket);
    if (error != 0) return Lost(pending, error);
    pending.connected = true;
  }
  return ContinueHandshake(pending);
}

Result<bool> Connecting::ContinueHandshake(Pending& pending) {
  const HandshakeResult result =
      AdvanceHandshake(pending.socket.get(), pending.handshake, pending.received);
  switch (result.progress) {
    case Progress::kWaits:
      return true;
    case Progress::kDone:
      RETURN_IF_ERROR(Complete(pending));
      return false;
    case Progress::kLost:
      return Lost(pending, result.error);
    case Progress::kRefused:
      break;
  }
  // A refused connection that is not from a rank is reported only if a rank is still missing at the
  // end. If this side connected, the refusal is an error.
  if (pending.peer >= 0) return result.refusal;
  refusal_ = std::string(result.refusal.message());
  return false;
}

Status Connecting::Missing() const {
  std::set<int> ranks;
  for (const auto& [purpose, connections] : mesh_) {
    for (int peer = 0; peer < request_.size; ++peer) {
      if (peer != request_.rank && !connections[peer].ok()) ranks.insert(peer);
    }
  }
  std::vector<std::string> first;
  for (const int peer : ranks) {
    if (first.size() < kFirstFew) first.push_back(absl::StrCat("rank ", peer));
  }
  return DeadlineExceededError(
      absl::StrCat("no connection in time with ", FirstFew(first, ranks.size()),
                   refusal_.empty() ? "" : "; the last connection that was refused: ", refusal_));
}

Status Connecting::Advance() {
  const MonoTime now = MonoNow();
  if (now >= request_.deadline) return Missing();
  pending_.remove_if([now](const Pending& one) { return one.peer < 0 && now >= one.give_up; });
  return OkStatus();
}

Result<Mesh> Connecting::Run() {
  for (int peer = 0; peer < request_.rank; ++peer) {
    for (const Purpose purpose : request_.purposes) RETURN_IF_ERROR(CallRank(peer, purpose));
  }
  MonoTime next_check = MonoNow() + kCheckInterval;
  while (missing_ > 0) {
    std::vector<pollfd> descriptors = {{listener_.get(), POLLIN, 0}};
    for (Pending& one : pending_) {
      const bool writes = !one.connected || !one.handshake.output().empty();
      descriptors.push_back({one.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
    }
    MonoTime wake = std::min(request_.deadline, next_check);
    for (const Redial& redial : redials_) wake = std::min(wake, redial.at);
    const int ready = poll(descriptors.data(), descriptors.size(), MillisUntil(wake, kPollMillis));
    if (ready > 0) {
      size_t at = 0;
      const size_t polled = descriptors.size();
      for (auto one = pending_.begin(); one != pending_.end() && ++at < polled;) {
        ASSIGN_OR_RETURN(const bool goes_on, Serve(*one, descriptors[at].revents));
        one = goes_on ? std::next(one) : pending_.erase(one);
      }
      if (descriptors[0].revents != 0) RETURN_IF_ERROR(Accept());
    }
    RETURN_IF_ERROR(Advance());
    RETURN_IF_ERROR(CallAgain());
    if (MonoNow() < next_check) continue;
    next_check = MonoNow() + kCheckInterval;
    RETURN_IF_ERROR(request_.check());
  }
  return std::move(mesh_);
}

}  // namespace

Result<Mesh> ConnectMesh(const MeshRequest& request, const ScopedFd& listener) {
  return Connecting(request, listener).Run();
}

}  // namespace cadre::sockets
