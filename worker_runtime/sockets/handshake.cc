#include "worker_runtime/sockets/handshake.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/keyed_digest.h"
#include "base/text.h"
#include "base/token.h"

namespace cadre::sockets {
namespace {

// The last byte is the protocol's version.
constexpr absl::string_view kMagic("cadre-s\2", 8);

// The layout on the network; all machines must have the same byte order.
struct Hello {
  char magic[8];
  int32_t from;
  int32_t to;
  uint32_t purpose;
  uint32_t encrypts;
  char nonce[kNonceBytes];
};
static_assert(sizeof(Hello) == 40);

// The accepting side's nonce, and a byte that states whether it encrypts.
constexpr size_t kChallengeBytes = kNonceBytes + 1;
constexpr absl::string_view kWelcome = "W";

std::string NameOf(int rank) {
  return rank == kStoreRank ? "the store's server" : absl::StrCat("rank ", rank);
}

}  // namespace

Handshake::Handshake(HandshakeParameters parameters, std::string nonce)
    : parameters_(std::move(parameters)), own_nonce_(std::move(nonce)) {
  CADRE_CHECK(own_nonce_.size() == kNonceBytes, own_nonce_.size(), " bytes");
}

Handshake Handshake::Call(HandshakeParameters parameters, int own_rank, int peer, Purpose purpose,
                          std::string nonce) {
  Handshake call(std::move(parameters), std::move(nonce));
  call.initiates_ = true;
  call.own_rank_ = own_rank;
  call.peer_ = peer;
  call.purpose_ = purpose;
  Hello hello = {};
  kMagic.copy(hello.magic, sizeof(hello.magic));
  hello.from = own_rank;
  hello.to = peer;
  hello.purpose = static_cast<uint32_t>(purpose);
  hello.encrypts = call.parameters_.encrypts ? 1 : 0;
  call.own_nonce_.copy(hello.nonce, kNonceBytes);
  call.hello_.assign(reinterpret_cast<const char*>(&hello), sizeof(hello));
  call.output_ = call.hello_;
  call.step_ = Step::kChallenge;
  call.wanted_ = kChallengeBytes + kKeyedDigestBytes;
  return call;
}

Handshake Handshake::Answer(HandshakeParameters parameters, int own_rank, int size,
                            std::string nonce) {
  Handshake answer(std::move(parameters), std::move(nonce));
  answer.own_rank_ = own_rank;
  answer.size_ = size;
  answer.wanted_ = sizeof(Hello);
  return answer;
}

Status Handshake::Receive(absl::string_view bytes) {
  CADRE_CHECK(bytes.size() == wanted_ && wanted_ > 0, bytes.size(), " of ", wanted_);
  switch (step_) {
    case Step::kHello:
      return ReceiveHello(bytes);
    case Step::kChallenge:
      return ReceiveChallenge(bytes);
    case Step::kProof:
      return ReceiveProof(bytes);
    case Step::kWelcome:
      return ReceiveWelcome(bytes);
  }
  return InternalError("no such step");
}

// The proof covers the side, so an answer to an unauthenticated client is useless for connecting.
std::string Handshake::ProofOf(absl::string_view side) const {
  return KeyedDigest(parameters_.key, absl::StrCat(side, hello_, challenge_));
}

Status Handshake::ReceiveHello(absl::string_view bytes) {
  Hello hello;
  memcpy(&hello, bytes.data(), sizeof(hello));
  const absl::string_view magic(hello.magic, sizeof(hello.magic));
  if (magic != kMagic) {
    return InvalidArgumentError(absl::StrCat(
        "a process connected whose first bytes are not those of this protocol: ", Quoted(magic)));
  }
  const bool knows_purpose = hello.purpose >= static_cast<uint32_t>(Purpose::kControl) &&
                             hello.purpose <= static_cast<uint32_t>(Purpose::kStore);
  if (hello.to != own_rank_ || hello.from <= own_rank_ || hello.from >= size_ || !knows_purpose) {
    return InvalidArgumentError(absl::StrCat("rank ", hello.from, " calls rank ", hello.to, " for ",
                                             hello.purpose, "; this is rank ", own_rank_, " of ",
                                             size_));
  }
  peer_ = hello.from;
  purpose_ = static_cast<Purpose>(hello.purpose);
  hello_ = std::string(bytes);
  peer_encrypts_ = hello.encrypts != 0;
  challenge_ = own_nonce_ + (parameters_.encrypts ? '\1' : '\0');
  output_ = absl::StrCat(challenge_, ProofOf("called"));
  step_ = Step::kProof;
  wanted_ = kKeyedDigestBytes;
  return OkStatus();
}

Status Handshake::ReceiveChallenge(absl::string_view bytes) {
  challenge_ = std::string(bytes.substr(0, kChallengeBytes));
  if (!EqualConstantTime(bytes.substr(kChallengeBytes), ProofOf("called"))) {
    return PermissionDeniedError(absl::StrCat("the process that answers for rank ", peer_,
                                              " does not know the key of this communicator"));
  }
  peer_encrypts_ = challenge_[kNonceBytes] != '\0';
  output_ = ProofOf("caller");
  step_ = Step::kWelcome;
  wanted_ = kWelcome.size();
  return OkStatus();
}

Status Handshake::ReceiveProof(absl::string_view bytes) {
  if (!EqualConstantTime(bytes, ProofOf("caller"))) {
    return PermissionDeniedError(absl::StrCat("a process that says it is rank ", peer_,
                                              " does not know the key of this communicator"));
  }
  output_ = std::string(kWelcome);
  wanted_ = 0;
  return OkStatus();
}

Status Handshake::ReceiveWelcome(absl::string_view bytes) {
  if (bytes != kWelcome) {
    return InvalidArgumentError(absl::StrCat(
        "rank ", peer_, " answered with bytes that are not of this protocol: ", Quoted(bytes)));
  }
  wanted_ = 0;
  return OkStatus();
}

Status Handshake::CheckEncryption() const {
  if (peer_encrypts_ == parameters_.encrypts) return OkStatus();
  const std::string own = NameOf(own_rank_), peer = NameOf(peer_);
  return FailedPreconditionError(
      absl::StrCat(parameters_.encrypts ? own : peer, " encrypts what it sends and ",
                   parameters_.encrypts ? peer : own,
                   " does not: all must be started with --encrypt (CADRE_ENCRYPT=1), or none"));
}

std::optional<wire::RecordKeys> Handshake::MakeRecordKeys() const {
  if (!parameters_.encrypts) return std::nullopt;
  const std::string salt = absl::StrCat(hello_, challenge_);
  wire::RecordKeys keys = {DeriveKey(parameters_.key, salt, "cadre records of the caller"),
                           DeriveKey(parameters_.key, salt, "cadre records of the called")};
  if (!initiates_) std::swap(keys.outgoing, keys.incoming);
  return keys;
}

Result<std::string> HandshakeNonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getrandom(&nonce[0], kNonceBytes, 0) == static_cast<ssize_t>(kNonceBytes)) return nonce;
  return InternalError(absl::StrCat("no random bytes: ", ErrnoText(errno)));
}

HandshakeResult AdvanceHandshake(int socket, Handshake& handshake, std::string& received) {
  while (true) {
    std::string& output = handshake.output();
    if (!output.empty()) {
      const ssize_t sent = send(socket, output.data(), output.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return {Progress::kLost, errno, {}};
      if (sent > 0) output.erase(0, static_cast<size_t>(sent));
      if (!output.empty()) return {};
    }
    if (handshake.is_done()) return {Progress::kDone, 0, {}};
    // Bytes after the handshake belong to the connection's user, so none of them may be read here.
    char bytes[256];
    const ssize_t got =
        recv(socket, bytes, std::min(sizeof(bytes), handshake.wanted() - received.size()), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (got <= 0) return {Progress::kLost, got == 0 ? 0 : errno, {}};
    received.append(bytes, static_cast<size_t>(got));
    if (received.size() < handshake.wanted()) continue;
    const Status status = handshake.Receive(std::exchange(received, ""));
    if (!status.ok()) return {Progress::kRefused, 0, status};
  }
}

}  // namespace cadre::sockets
