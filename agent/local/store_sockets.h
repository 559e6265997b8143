// Serves the store to this node's workers, each on a socket of its own (rpc/frames/store_frames.h).
//
// Used by one thread at a time.
#ifndef CADRE_AGENT_LOCAL_STORE_SOCKETS_H_
#define CADRE_AGENT_LOCAL_STORE_SOCKETS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/store.pb.h"

namespace cadre {

inline constexpr size_t kMaxStoreSockets = 4096;
// Operations of all that may wait for an answer at once; one more is refused.
inline constexpr size_t kMaxSocketCalls = 65536;
// Of one, answers that it has not read included; beyond that nothing more is read from it.
inline constexpr size_t kMaxCallsPerSocket = 1024;

class StoreSockets {
 public:
  // Workers connect at `listener`; `accept` gives the next connection, or -1.
  static absl::StatusOr<std::unique_ptr<StoreSockets>> Make(std::string token, int listener,
                                                            std::function<int()> accept);
  // Says to all that the agent leaves.
  ~StoreSockets();
  StoreSockets(const StoreSockets&) = delete;
  StoreSockets& operator=(const StoreSockets&) = delete;

  // Readable when Read should be called.
  int fd() const { return epoll_; }
  // What workers ask now; each request is to be answered. Never blocks.
  std::vector<v1::StoreRequest> Read();
  // Goes to everyone who waits for this client and request id. Never blocks.
  void Answer(const v1::StoreReply& reply);

 private:
  struct Connection;
  using Key = std::pair<uint64_t, uint64_t>;  // client, request id

  StoreSockets(int epoll, std::string token, std::function<int()> accept);
  void Add(int socket);
  void ReadFrom(Connection* connection, std::vector<v1::StoreRequest>* requests);
  // Not OK: why the connection is to be ended.
  absl::Status TakeFrames(Connection* connection, std::vector<v1::StoreRequest>* requests);
  void Send(Connection* connection, const v1::StoreReply& reply);
  // False: it is broken.
  bool Flush(Connection* connection);
  void Watch(Connection* connection);
  // Says why, where there is room for that.
  void End(Connection* connection, const absl::Status& why);

  const int epoll_;
  const std::string token_;
  const std::function<int()> accept_;
  std::map<int, std::unique_ptr<Connection>> connections_;  // by socket
  // A request that is repeated on another connection waits beside the first one.
  std::multimap<Key, Connection*> waiting_;
};

}  // namespace cadre

#endif  // CADRE_AGENT_LOCAL_STORE_SOCKETS_H_
