// The agent's end of rpc/worker_protocol.h, with replies that a test chooses.
#ifndef CADRE_WORKER_RUNTIME_TESTING_CALL_SERVER_H_
#define CADRE_WORKER_RUNTIME_TESTING_CALL_SERVER_H_

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rpc/worker_protocol.h"

namespace cadre {

class CallServer {
 public:
  // Returns the replies that are sent now, in order, on the connection on which the call came. A
  // reply to call 0 closes the connection. A thread of each connection calls the handler.
  using Handler = std::function<std::vector<rpc::WorkerReply>(const rpc::WorkerCall&)>;

  CallServer(const std::string& socket, std::string token, Handler handler);
  // Closes all connections.
  ~CallServer();
  CallServer(const CallServer&) = delete;
  CallServer& operator=(const CallServer&) = delete;

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

#endif  // CADRE_WORKER_RUNTIME_TESTING_CALL_SERVER_H_
