// An agent's store on a unix socket (rpc/frames/store_frames.h), as a test wants it.
#ifndef CADRE_WORKER_RUNTIME_TESTING_STORE_SOCKET_SERVER_H_
#define CADRE_WORKER_RUNTIME_TESTING_STORE_SOCKET_SERVER_H_

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "proto/store.pb.h"

namespace cadre {

class StoreSocketServer {
 public:
  // What is said now on the connection on which the request came, in order. A reply to request 0
  // ends it. Called by a thread of each connection.
  using Handler = std::function<std::vector<v1::StoreReply>(const v1::StoreRequest&)>;

  // Listens where workers look whose agent has this socket.
  StoreSocketServer(const std::string& agent_socket, std::string token, Handler handler);
  // Ends all connections.
  ~StoreSocketServer();
  StoreSocketServer(const StoreSocketServer&) = delete;
  StoreSocketServer& operator=(const StoreSocketServer&) = delete;

 private:
  void Accept();
  void Serve(int socket);

  const std::string path_;
  const std::string token_;
  const Handler handler_;
  int listener_ = -1;
  std::mutex mutex_;
  std::set<int> sockets_;  // guarded by mutex_
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_TESTING_STORE_SOCKET_SERVER_H_
