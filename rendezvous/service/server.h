// The server's gRPC side: listens, checks tokens and hands calls to the core thread.
#ifndef CADRE_RENDEZVOUS_SERVICE_SERVER_H_
#define CADRE_RENDEZVOUS_SERVICE_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/caller_loads.h"
#include "rpc/tls/transport_security.h"

namespace cadre::service {

struct ServerOptions {
  // Address or name of this machine. 0.0.0.0 or :: is every address.
  std::string host = "127.0.0.1";
  // 0: one that is free; Server::port() says which.
  int port = 0;
  // The token that every call must carry. Empty: none, which only loopback allows.
  std::string token;
  // Where it was read; empty: it does not change.
  std::string token_file;
  rpc::TransportSecurity security;
  // What this server knows is nowhere else, and is gone when its process ends. Nodes are told, so
  // that they do not wait for one that comes back.
  bool keeps_nothing = false;
  // May be null. One line for each change of token or certificates, and for callers who are refused
  // (refusal_log.h). From any thread.
  std::function<void(const std::string&)> log;
  // Of each user.
  CallerLimits caller_limits;
};

// How a server that does not lead begins what it says.
inline constexpr char kInReserve[] = "this server stands in reserve";

// Thread safe. One Shutdown at most has an effect. The token and the TLS files are read anew every
// second by a thread of its own: new calls need the new token, new connections see the new
// certificate; what is open stays.
class Server {
 public:
  // Serves when it returns. `core` outlives the server. The process may have as many files open
  // from then on as its hard limit allows.
  //   ALREADY_EXISTS       the port is in use
  //   PERMISSION_DENIED    the port is below 1024 and this user may not use those
  //   INVALID_ARGUMENT     the host is not this machine's; no token off loopback; TLS files, or
  //                        none of it off loopback
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       host::CoreThread& core);
  // Null: every call is refused until Serve is called.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       std::shared_ptr<host::CoreThread> core);
  // Shuts down without waiting.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;

  // The token that calls must carry at present.
  std::string token() const;

  // From now on calls go to `core`, or are refused with `why`; streams that are open stay with the
  // core they came to.
  void Serve(std::shared_ptr<host::CoreThread> core);
  void Refuse(absl::Status why);
  // Where calls go at present, or with what they are refused.
  absl::StatusOr<std::shared_ptr<host::CoreThread>> Serving() const;

  // Accepts nothing new, gives what is open up to `drain` to end by itself, then cancels it.
  // Returns when all has ended, at once if nothing is open.
  void Shutdown(absl::Duration drain);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_SERVER_H_
