// The server's gRPC side: listens, checks tokens and hands calls to the core thread.
#ifndef CADRE_RENDEZVOUS_SERVICE_SERVER_H_
#define CADRE_RENDEZVOUS_SERVICE_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/accounting/accounting.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/caller_limits.h"
#include "rpc/tls/transport_security.h"

namespace cadre::service {

struct ServerOptions {
  // An address or a name of this machine. 0.0.0.0 or :: means every address.
  std::string host = "127.0.0.1";
  // 0: a free port, which Server::port() returns.
  int port = 0;
  // The token that every call must carry. Empty: no token, which is allowed on loopback only.
  std::string token;
  // The file from which it was read; empty: the token does not change.
  std::string token_file;
  rpc::TransportSecurity security;
  // The server keeps no state outside its process, so its jobs end with it. Nodes are informed, so
  // that they do not wait for it to come back.
  bool keeps_nothing = false;
  // Receives a line for each change of token or certificates, and for refused callers
  // (RefusalLog in admission.h), on any thread. May be null.
  std::function<void(const std::string&)> log;
  // The limits of each user.
  CallerLimits caller_limits;
  // Answers questions about jobs that have ended. Null: the server keeps no accounting.
  std::shared_ptr<accounting::Accounting> accounting;
};

// Thread safe. Only one Shutdown has an effect. A thread reads the token and the TLS files again
// every second: new calls need the new token, new connections get the new certificate, and open
// ones continue.
class Server {
 public:
  // Serves when it returns. `core` must outlive the server. Raises the process's limit of open
  // files to its hard limit.
  //   ALREADY_EXISTS       the port is in use
  //   PERMISSION_DENIED    the port is below 1024 and this user may not use those
  //   INVALID_ARGUMENT     the host is not this machine's; no token off loopback; TLS files, or
  //                        none of it off loopback
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       host::CoreThread& core);
  // With null every call is refused until Serve is called.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       std::shared_ptr<host::CoreThread> core);
  // Shuts down without a drain period.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;

  // The token that calls must carry at present.
  std::string token() const;

  // New calls go to `core`, or are refused with `why`; open streams stay with their core.
  void Serve(std::shared_ptr<host::CoreThread> core);
  void Refuse(absl::Status why);
  // The core that serves calls at present, or the error with which they are refused.
  absl::StatusOr<std::shared_ptr<host::CoreThread>> Serving() const;

  // Accepts nothing new, lets open calls end by themselves for up to `drain`, then cancels them.
  // Returns when all have ended, at once if none is open.
  void Shutdown(absl::Duration drain);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_SERVER_H_
