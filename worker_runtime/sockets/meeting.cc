#include "worker_runtime/sockets/meeting.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/wire/encryption.h"

namespace cadre::sockets {
namespace {

// Of an endpoint, as ranks of a group exchange it.
constexpr size_t kEndpointBytes = 80;
// For a key that is there.
constexpr std::chrono::nanoseconds kStorePatience = std::chrono::seconds(10);

// The same on all ranks: whoever comes first makes it.
Result<std::string> SharedKey(Worker& worker, const std::string& name) {
  const std::string own = RandomToken();
  Result<std::string> key = worker.CompareAndSet(name, "", own);
  if (key.ok()) return own;
  if (key.status().code() != StatusCode::kFailedPrecondition) return key.status();
  return worker.Get(name, kStorePatience);
}

Result<Terms> TermsOf(Worker& worker, const std::string& name) {
  Terms terms;
  ASSIGN_OR_RETURN(terms.encrypts, wire::WantsEncryption());
  ASSIGN_OR_RETURN(terms.key, SharedKey(worker, name));
  return terms;
}

}  // namespace

Result<Met> MeetInStore(Worker& worker, const std::string& name, Span<const Purpose> purposes,
                        std::chrono::nanoseconds timeout) {
  if (name.empty() || name.size() > kMaxCommunicatorName) {
    return InvalidArgumentError(absl::StrCat("a communicator's name must have 1 to ",
                                             kMaxCommunicatorName, " bytes, not ", name.size()));
  }
  const WorkerPlace& place = worker.place();
  // How often this rank has opened a communicator of that name: the same number on all ranks.
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
  ASSIGN_OR_RETURN(request.terms, TermsOf(worker, absl::StrCat(prefix, "key")));
  for (int peer = 0; peer < place.world_size; ++peer) {
    const std::chrono::nanoseconds left = absl::ToChronoNanoseconds(request.deadline - MonoNow());
    ASSIGN_OR_RETURN(std::string endpoint, worker.Get(absl::StrCat(prefix, peer), left));
    request.endpoints.push_back(std::move(endpoint));
  }
  // A rank may go while others still connect, and with it the generation; a store that does not
  // answer just now is no reason to give up.
  request.check = [&]() -> Status {
    const Status status =
        worker.Get(absl::StrCat(prefix, place.rank), std::chrono::seconds(1)).status();
    return status.code() == StatusCode::kAborted ? status : OkStatus();
  };
  ASSIGN_OR_RETURN(Mesh mesh, ConnectMesh(request, listener));
  return Met{std::move(mesh), request.terms.key};
}

Result<std::unique_ptr<PeerLinks>> ConnectPeerLinks(Worker& worker, const std::string& name,
                                                    std::chrono::nanoseconds timeout) {
  ASSIGN_OR_RETURN(Met met, MeetInStore(worker, name, {Purpose::kControl}, timeout));
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
  ASSIGN_OR_RETURN(request.terms, TermsOf(worker, absl::StrCat(pair.name, "/key")));
  request.endpoints[pair.rank] = EndpointOf(listener);
  ASSIGN_OR_RETURN(request.endpoints[peer], pair.await(key_of(peer)));
  ASSIGN_OR_RETURN(Mesh mesh, ConnectMesh(request, listener));
  return std::move(mesh.at(Purpose::kMessages)[peer]);
}

Result<Met> MeetInGroup(Communicator& parent, const GroupMeeting& group,
                        Span<const Purpose> purposes) {
  const int size = static_cast<int>(group.members.size());
  Result<ScopedFd> listener = UnavailableError("in no group");
  std::string own;
  if (size > 1) listener = Listen(group.address);
  // A rank that cannot listen still takes part, so that all fail alike.
  if (listener.ok()) own = EndpointOf(*listener);
  own.resize(kEndpointBytes);
  std::string all(kEndpointBytes * parent.size(), '\0');
  // However long it waits for its turn: until then it uses the memory.
  RETURN_IF_ERROR(parent
                      .AllGather({own.data(), own.size(), DataType::kUint8},
                                 {all.data(), all.size(), DataType::kUint8})
                      ->Wait(std::chrono::nanoseconds::max()));
  if (size < 2) return Met{};
  RETURN_IF_ERROR(listener.status());
  MeshRequest request;
  request.size = size;
  request.purposes.assign(purposes.begin(), purposes.end());
  request.deadline = MonoNow() + group.timeout;
  // Groups of one split differ in their first member.
  ASSIGN_OR_RETURN(request.terms.encrypts, wire::WantsEncryption());
  request.terms.key = KeyedDigest(group.key, absl::StrCat("group of rank ", group.members[0]));
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
  return Met{std::move(mesh), request.terms.key};
}

}  // namespace cadre::sockets
