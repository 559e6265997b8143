// Requests and replies of a store: the operations and errors of proto/store.proto without Protobuf.
// Plain values; Fields() lists their fields for rpc/frames/codec.h.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_STORE_REQUEST_H_
#define CADRE_RENDEZVOUS_KEYSPACE_STORE_REQUEST_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre::keyspace {

struct Set {
  std::string key;
  std::string value;
};
// Waits until the key exists.
struct Get {
  std::string key;
};
// Adds to the decimal number under the key; an absent key counts as 0.
struct Add {
  std::string key;
  int64_t delta = 0;
};
// Sets `desired` if the key holds `expected`; an absent key counts as empty.
struct CompareAndSet {
  std::string key;
  std::string expected;
  std::string desired;
};
struct Delete {
  std::string key;
};
// Waits until `size` different ranks have entered; 0 means the world size.
struct EnterBarrier {
  std::string name;
  uint32_t size = 0;
};
struct PublishId {
  std::string communicator;
  std::string id;
};
// Waits until the id is published.
struct GetId {
  std::string communicator;
};

using Operation =
    std::variant<Set, Get, Add, CompareAndSet, Delete, EnterBarrier, PublishId, GetId>;

struct Request {
  // A random number for one lifetime of the client; together with `id` it identifies the request.
  uint64_t client = 0;
  uint64_t id = 0;
  // The client's rank, by which barriers count arrivals.
  int32_t rank = 0;
  // How long the client is ready to wait.
  uint32_t wait_ms = 0;
  Operation operation;
};

struct Reply {
  uint64_t client = 0;
  uint64_t id = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  // One line when code is not OK, at most kMaxMessageBytes.
  std::string message;
  // For Get and GetId the value read; for CompareAndSet what the key holds afterwards.
  std::string value;
  // For Add the sum; for Delete 1 if the key existed.
  int64_t number = 0;

  absl::Status status() const { return absl::Status(code, message); }
};

// Returns INVALID_ARGUMENT if the key or name is empty or longer than kMaxKeyBytes, or is not
// UTF-8, which Protobuf demands of the strings that transport and store it.
absl::Status CheckName(const Operation& operation);

// Returns the reply to a request, without content.
inline Reply ReplyTo(const Request& request) {
  Reply reply;
  reply.client = request.client;
  reply.id = request.id;
  return reply;
}
// `message` is made UTF-8 and cut to kMaxMessageBytes.
Reply ErrorReply(uint64_t client, uint64_t id, absl::StatusCode code, absl::string_view message);

template <typename Io>
void Fields(Io& io, Set& m) {
  io(m.key, m.value);
}
template <typename Io>
void Fields(Io& io, Get& m) {
  io(m.key);
}
template <typename Io>
void Fields(Io& io, Add& m) {
  io(m.key, m.delta);
}
template <typename Io>
void Fields(Io& io, CompareAndSet& m) {
  io(m.key, m.expected, m.desired);
}
template <typename Io>
void Fields(Io& io, Delete& m) {
  io(m.key);
}
template <typename Io>
void Fields(Io& io, EnterBarrier& m) {
  io(m.name, m.size);
}
template <typename Io>
void Fields(Io& io, PublishId& m) {
  io(m.communicator, m.id);
}
template <typename Io>
void Fields(Io& io, GetId& m) {
  io(m.communicator);
}

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_STORE_REQUEST_H_
