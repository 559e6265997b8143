#include "worker_runtime/launched/torch_store.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rpc/torch_protocol.h"
#include "worker_runtime/sockets/endpoint.h"

namespace cadre::launched {
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

Status Silent() {
  return UnavailableError(
      absl::StrCat("no answer within ", absl::FormatDuration(TorchStore::kAnswerPatience)));
}

}  // namespace

Result<TorchStore> TorchStore::Connect(const std::string& endpoint) {
  const MonoTime deadline = MonoNow() + kAnswerPatience;
  ASSIGN_OR_RETURN(ScopedFd socket, sockets::ConnectBefore(deadline, endpoint));
  TorchStore store(std::move(socket));
  // In one piece: an older store would wait for the rest, and with it all its clients.
  RETURN_IF_ERROR(
      store.Send(absl::StrCat(TorchOpByte(TorchOp::kValidate), LittleEndian32(rpc::kTorchMagic),
                              TorchOpByte(TorchOp::kPing), LittleEndian32(kPingNumber)),
                 deadline));
  ASSIGN_OR_RETURN(const std::string answer, store.Receive(4, deadline));
  if (answer == LittleEndian32(kPingNumber)) return store;
  return UnavailableError(absl::StrCat("it answered ", Quoted(answer)));
}

Status TorchStore::Set(absl::string_view key, absl::string_view value) {
  const MonoTime deadline = MonoNow() + kAnswerPatience;
  // Unlike SET, PING is answered: what was sent before it is done.
  RETURN_IF_ERROR(Send(absl::StrCat(TorchOpByte(TorchOp::kSet), TorchText(key), TorchText(value),
                                    TorchOpByte(TorchOp::kPing), LittleEndian32(kPingNumber)),
                       deadline));
  return Receive(4, deadline).status();
}

Result<std::optional<std::string>> TorchStore::Get(absl::string_view key, size_t limit) {
  const MonoTime deadline = MonoNow() + kAnswerPatience;
  RETURN_IF_ERROR(Send(
      absl::StrCat(TorchOpByte(TorchOp::kCheck), LittleEndian64(1), TorchText(key)), deadline));
  ASSIGN_OR_RETURN(const std::string there, Receive(1, deadline));
  if (there[0] != kIsThere) return std::optional<std::string>();
  RETURN_IF_ERROR(Send(absl::StrCat(TorchOpByte(TorchOp::kGet), TorchText(key)), deadline));
  ASSIGN_OR_RETURN(const std::string length, Receive(8, deadline));
  uint64_t size = 0;
  for (size_t i = 0; i < 8; ++i) size |= uint64_t{static_cast<uint8_t>(length[i])} << (8 * i);
  if (size > limit) return InternalError(absl::StrCat("a value of ", size, " bytes"));
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
      return Silent();
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
      return UnavailableError("it ended the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return UnavailableError(ErrnoText(errno));
    } else if (!sockets::AwaitEvent(socket_, POLLIN, deadline)) {
      return Silent();
    }
  }
  return bytes;
}

}  // namespace cadre::launched
