// The ways in which ranks without an agent find rank 0: at an address, through a file, or through
// torchrun's store, whose client is here, too.
#include "worker_runtime/launched/meeting_place.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/token.h"
#include "base/user_directory.h"
#include "rpc/torch_protocol.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/sockets/tcp_socket.h"

namespace cadre::launched {
namespace {

// A machine that has just been given its name may not resolve it yet.
constexpr absl::Duration kNamePatience = absl::Seconds(20);
constexpr absl::Duration kNamePause = absl::Milliseconds(500);

class AddressMeeting : public MeetingPlace {
 public:
  AddressMeeting(const environment::AtAddress& at, const environment::Secret& secret)
      : at_(at),
        leaves_machine_(secret.from_file),
        key_(KeyedDigest(secret.token, "the store at an address")) {}

  Result<StoreListener> Open() override {
    Result<ScopedFd> listener = leaves_machine_ ? ListenAsHost(at_.host, at_.port)
                                                : sockets::Listen(sockets::kLoopback, at_.port);
    if (listener.ok()) return StoreListener{*std::move(listener), key_};
    return UnavailableError(absl::StrCat("rank 0 cannot serve the others at ",
                                         sockets::EndpointAt(at_.host, at_.port), ": ",
                                         listener.status().message(),
                                         "; it must be rank 0's own address (MASTER_ADDR) and a "
                                         "port that nothing else uses (MASTER_PORT)"));
  }
  Status Announce(const StoreListener&, const std::string&) override { return OkStatus(); }

  Result<store::StoreAddress> Find() override {
    std::vector<std::string> addresses = {sockets::kLoopback};
    if (leaves_machine_) {
      Result<std::vector<std::string>> named = sockets::AddressesOf(at_.host);
      // Some names can be resolved only once rank 0 runs.
      if (!named.ok()) return NotFoundError(named.status().message());
      addresses = *std::move(named);
    }
    // A name may have several addresses, which are tried in turn.
    return store::StoreAddress{sockets::EndpointAt(addresses[next_++ % addresses.size()], at_.port),
                               key_};
  }

  absl::Duration RefusalTimeout() const override { return absl::ZeroDuration(); }
  std::string Advice() const override {
    return leaves_machine_ ? ""
                           : "; without CADRE_SECRET_FILE only ranks of this machine find each "
                             "other";
  }

 private:
  const environment::AtAddress at_;
  const bool leaves_machine_;
  const std::string key_;
  size_t next_ = 0;
};

}  // namespace

Result<ScopedFd> ListenAsHost(const std::string& host, uint16_t port) {
  Result<std::vector<std::string>> addresses = sockets::AddressesOf(host);
  const MonoTime deadline = MonoNow() + kNamePatience;
  while (!addresses.ok() && MonoNow() < deadline) {
    absl::SleepFor(kNamePause);
    addresses = sockets::AddressesOf(host);
  }
  RETURN_IF_ERROR(addresses.status());
  Status why;
  for (const std::string& address : *addresses) {
    // Many machines resolve their own name to loopback.
    if (sockets::IsLoopback(address) && !sockets::NamesLoopback(host)) continue;
    Result<ScopedFd> listener = sockets::Listen(address, port);
    if (listener.ok()) return listener;
    why = listener.status();
  }
  for (const char* every : {"::", "0.0.0.0"}) {
    if (sockets::NamesLoopback(host)) break;
    Result<ScopedFd> listener = sockets::Listen(every, port);
    if (listener.ok()) return listener;
    if (why.ok()) why = listener.status();
  }
  return why;
}

Result<std::unique_ptr<MeetingPlace>> MeetAtAddress(const environment::AtAddress& at,
                                                    const environment::Secret& secret,
                                                    std::optional<bool> one_node) {
  if (!secret.from_file && !sockets::NamesLoopback(at.host)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> named, sockets::AddressesOf(at.host));
    const bool here = std::any_of(named.begin(), named.end(), sockets::IsOwn);
    if (!here || !one_node.value_or(true)) {
      return FailedPreconditionError(absl::StrCat(
          "CADRE_SECRET_FILE is not set, so the ranks may only meet on one machine, but ",
          here ? absl::StrCat("there are several nodes (rank 0 is on ", at.host, ")")
               : absl::StrCat("rank 0's address, ", at.host, ", is not this machine's"),
          ": set it to a file with the same content on all nodes (\"cadre token new FILE\" makes "
          "one)"));
    }
  }
  return std::unique_ptr<MeetingPlace>(std::make_unique<AddressMeeting>(at, secret));
}

namespace {

class FileMeeting : public MeetingPlace {
 public:
  FileMeeting(std::string path, std::string address, bool one_node)
      : path_(std::move(path)), address_(std::move(address)), one_node_(one_node) {}

  Result<StoreListener> Open() override {
    ASSIGN_OR_RETURN(ScopedFd listener, sockets::Listen(address_));
    return StoreListener{std::move(listener), RandomToken()};
  }
  Status Announce(const StoreListener& store_listener, const std::string& endpoint) override {
    return WriteTokenFile(path_, absl::StrCat(endpoint, " ", store_listener.key));
  }
  void Close() override { unlink(path_.c_str()); }

  Result<store::StoreAddress> Find() override {
    const absl::StatusOr<std::string> line = ReadTokenFile(path_);
    if (!line.ok()) {
      const Status status = line.status();
      // The file system may not answer at the moment.
      return status.code() == StatusCode::kUnavailable ? NotFoundError(status.message()) : status;
    }
    const std::pair<std::string, std::string> words =
        absl::StrSplit(*line, absl::MaxSplits(' ', 1));
    return store::StoreAddress{words.first, words.second};
  }

  // The key belongs to this launch only: a server that does not know it has the port of an earlier
  // launch.
  absl::Duration RefusalTimeout() const override { return absl::InfiniteDuration(); }
  std::string Advice() const override {
    return one_node_ ? ""
                     : "; where home directories are not shared, start the program with Cadre: "
                       "mpirun ... "
                       "cadre run -- PROGRAM";
  }

 private:
  const std::string path_;
  const std::string address_;
  const bool one_node_;
};

}  // namespace

Result<std::unique_ptr<MeetingPlace>> MeetThroughFile(const environment::ThroughFile& file,
                                                      bool one_node) {
  const absl::StatusOr<std::string> directory = one_node ? RuntimeDirectory() : HomeDirectory();
  if (directory.ok()) {
    return std::unique_ptr<MeetingPlace>(std::make_unique<FileMeeting>(
        absl::StrCat(*directory, "/", file.name), file.address, one_node));
  }
  return FailedPreconditionError(
      absl::StrCat("mpirun's processes find each other through a directory of this user, but ",
                   directory.status().message(),
                   "; or start the program with Cadre: mpirun ... cadre run -- PROGRAM"));
}

namespace {

constexpr absl::Duration kPause = absl::Milliseconds(500);
// The most bytes of rank 0's announcement: host, port and a random word.
constexpr size_t kMaxAnnouncement = 1024;
// How long a server that refuses the key may be one that got the port of an earlier rank 0, before
// the new rank 0 has published its address.
constexpr absl::Duration kRefusalPatience = absl::Seconds(10);

class TorchrunMeeting : public MeetingPlace {
 public:
  TorchrunMeeting(const environment::ThroughTorchrun& through, const environment::Secret& secret)
      : through_(through), secret_(secret) {}

  Result<StoreListener> Open() override {
    host_ = sockets::kLoopback;
    if (secret_.from_file) {
      RETURN_IF_ERROR(Connect());
      // This node's address as seen from the node of torchrun's store; on that node itself, its
      // host name.
      host_ = store_->local_address();
      if (sockets::IsLoopback(host_)) host_ = through_.host;
    }
    ASSIGN_OR_RETURN(ScopedFd listener, ListenAsHost(host_, 0));
    nonce_ = RandomToken();
    return StoreListener{std::move(listener), KeyFor(nonce_)};
  }

  Status Announce(const StoreListener&, const std::string& endpoint) override {
    RETURN_IF_ERROR(Connect());
    const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
    return store_->Set(through_.key, absl::StrCat(host_, " ", port, " ", nonce_));
  }

  Result<store::StoreAddress> Find() override {
    RETURN_IF_ERROR(Connect());
    Result<std::optional<std::string>> said = store_->Get(through_.key, kMaxAnnouncement);
    if (!said.ok()) {
      // Retries once, on a new connection.
      store_.reset();
      RETURN_IF_ERROR(Connect());
      said = store_->Get(through_.key, kMaxAnnouncement);
    }
    RETURN_IF_ERROR(said.status());
    if (!said->has_value()) return NotFoundError("rank 0 has not said yet where it is");
    const std::vector<std::string> words = absl::StrSplit(**said, ' ');
    int port = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &port)) {
      return InternalError(
          absl::StrCat("torchrun's store holds no address of rank 0 under ", through_.key));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> addresses, sockets::AddressesOf(words[0]));
    return store::StoreAddress{
        sockets::EndpointAt(addresses[next_++ % addresses.size()], static_cast<uint16_t>(port)),
        KeyFor(words[2])};
  }

  absl::Duration RefusalTimeout() const override { return kRefusalPatience; }

 private:
  // The nonce is unique to this rank 0, so that no rank mistakes another launch's store for it.
  std::string KeyFor(const std::string& nonce) const {
    return KeyedDigest(secret_.token, absl::StrCat("torchrun ", through_.key, " ", nonce));
  }

  Status Connect() {
    if (store_.has_value()) return OkStatus();
    const MonoTime deadline = MonoNow() + kTorchrunTimeout;
    while (true) {
      ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                       sockets::AddressesOf(through_.host));
      Status why;
      for (const std::string& address : addresses) {
        Result<TorchStore> store = TorchStore::Connect(sockets::EndpointAt(address, through_.port));
        if (store.ok()) {
          store_ = *std::move(store);
          return OkStatus();
        }
        why = store.status();
      }
      if (MonoNow() + kPause >= deadline) return Unanswered(why);
      absl::SleepFor(kPause);
    }
  }

  Status Unanswered(const Status& why) const {
    return UnavailableError(absl::StrCat(
        "the store at ", through_.host, ":", through_.port,
        ", which torchrun says it serves, does not speak the protocol of PyTorch 2.1 or newer (",
        why.message(), "): give an older torchrun --rdzv-backend c10d, or use \"cadre run\""));
  }

  const environment::ThroughTorchrun through_;
  const environment::Secret secret_;
  std::optional<TorchStore> store_;
  std::string host_;
  std::string nonce_;
  size_t next_ = 0;
};

}  // namespace

Result<std::unique_ptr<MeetingPlace>> MeetThroughTorchrun(
    const environment::ThroughTorchrun& through, const environment::Secret& secret, bool one_node) {
  if (!secret.from_file && !one_node && !sockets::NamesLoopback(through.host)) {
    return FailedPreconditionError(
        "CADRE_SECRET_FILE is not set, so the ranks may only meet on one machine, but torchrun "
        "started several nodes: set it to a file with the same content on all nodes (\"cadre token "
        "new FILE\" makes one)");
  }
  return std::unique_ptr<MeetingPlace>(std::make_unique<TorchrunMeeting>(through, secret));
}

namespace {

using rpc::LittleEndian32;
using rpc::LittleEndian64;
using rpc::TorchOp;
using rpc::TorchOpByte;
using rpc::TorchText;

// A store older than 2.1 takes the validation for the opcode SET, and the 8 bytes behind the first
// for the length of a key. Its highest byte is this number's third: a length that no machine has,
// so that such a store closes the connection, and neither waits for more nor tries to find room.
constexpr uint32_t kPingNumber = 0xFFFFFF2A;
constexpr char kIsThere = 0;

Status NoAnswerError() {
  return UnavailableError(absl::StrCat("torchrun's store gave no answer within ",
                                       absl::FormatDuration(TorchStore::kAnswerTimeout)));
}

}  // namespace

Result<TorchStore> TorchStore::Connect(const std::string& endpoint) {
  const MonoTime deadline = MonoNow() + kAnswerTimeout;
  ASSIGN_OR_RETURN(ScopedFd socket, sockets::ConnectBefore(deadline, endpoint));
  TorchStore store(std::move(socket));
  // Sent in one piece: an older store would wait for the rest, and with it all its clients.
  RETURN_IF_ERROR(
      store.Send(absl::StrCat(TorchOpByte(TorchOp::kValidate), LittleEndian32(rpc::kTorchMagic),
                              TorchOpByte(TorchOp::kPing), LittleEndian32(kPingNumber)),
                 deadline));
  ASSIGN_OR_RETURN(const std::string answer, store.Receive(4, deadline));
  if (answer == LittleEndian32(kPingNumber)) return store;
  return UnavailableError(absl::StrCat("torchrun's store answered ", Quoted(answer)));
}

Status TorchStore::Set(absl::string_view key, absl::string_view value) {
  const MonoTime deadline = MonoNow() + kAnswerTimeout;
  // Unlike SET, PING is answered; its answer means that what was sent before it is done.
  RETURN_IF_ERROR(Send(absl::StrCat(TorchOpByte(TorchOp::kSet), TorchText(key), TorchText(value),
                                    TorchOpByte(TorchOp::kPing), LittleEndian32(kPingNumber)),
                       deadline));
  return Receive(4, deadline).status();
}

Result<std::optional<std::string>> TorchStore::Get(absl::string_view key, size_t limit) {
  const MonoTime deadline = MonoNow() + kAnswerTimeout;
  RETURN_IF_ERROR(Send(
      absl::StrCat(TorchOpByte(TorchOp::kCheck), LittleEndian64(1), TorchText(key)), deadline));
  ASSIGN_OR_RETURN(const std::string there, Receive(1, deadline));
  if (there[0] != kIsThere) return std::optional<std::string>();
  RETURN_IF_ERROR(Send(absl::StrCat(TorchOpByte(TorchOp::kGet), TorchText(key)), deadline));
  ASSIGN_OR_RETURN(const std::string length, Receive(8, deadline));
  uint64_t size = 0;
  for (size_t i = 0; i < 8; ++i) size |= uint64_t{static_cast<uint8_t>(length[i])} << (8 * i);
  if (size > limit) {
    return InternalError(absl::StrCat("torchrun's store holds ", size, " bytes under ", key,
                                      "; at most ", limit, " were expected"));
  }
  ASSIGN_OR_RETURN(std::string value, Receive(size, deadline));
  return std::optional<std::string>(std::move(value));
}

std::string TorchStore::local_address() const { return sockets::AddressOf(socket_.get()); }

Status TorchStore::Send(absl::string_view bytes, MonoTime deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return UnavailableError(ErrnoText(errno));
    } else if (!sockets::AwaitEvent(socket_, POLLOUT, deadline)) {
      return NoAnswerError();
    }
  }
  return OkStatus();
}

Result<std::string> TorchStore::Receive(size_t size, MonoTime deadline) {
  std::string bytes(size, '\0');
  size_t received = 0;
  while (received < size) {
    const ssize_t got = recv(socket_.get(), &bytes[received], size - received, 0);
    if (got > 0) {
      received += static_cast<size_t>(got);
    } else if (got == 0) {
      return UnavailableError("torchrun's store ended the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return UnavailableError(ErrnoText(errno));
    } else if (!sockets::AwaitEvent(socket_, POLLIN, deadline)) {
      return NoAnswerError();
    }
  }
  return bytes;
}

}  // namespace cadre::launched
