// How a launcher takes part in the rendezvous: alone, as the one that serves it, or as a client.
// Used by one thread.
#ifndef CADRE_LAUNCHER_ATTACH_ATTACH_H_
#define CADRE_LAUNCHER_ATTACH_ATTACH_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/link/server_link.h"
#include "launcher/attach/security.h"
#include "launcher/environment/launch_board.h"
#include "launcher/flags/run_options.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/log/etcd_client.h"
#include "rendezvous/service/replica.h"
#include "rendezvous/service/server.h"

namespace cadre::launcher {

struct Attachment {
  // Destroyed in reverse order: the link first, the core last.
  std::unique_ptr<host::CoreThread> core;
  std::unique_ptr<service::Server> server;
  // With etcd; replaces `core`.
  std::unique_ptr<service::Replica> replica;
  std::unique_ptr<agent::ServerLink> link;
  // host:port as shown to users; several are separated by commas; empty without a server.
  std::string endpoint;
  // The one of them at which this launcher's own server listens; empty if it has none.
  std::string serves;
  // Why other machines cannot reach the server although its name does not tell: "head is 127.0.1.1
  // here".
  std::string why_only_local;
  // The content of --token-file if it is named and needed; it is kept because standard input can be
  // read only once.
  std::string token;
  // The file with the token of the launch (one srun or mpirun), and the board through which its
  // nodes exchange facts without a connection. At the end the launcher that serves removes both and
  // leaves on the board how the launch ended. Empty and nullopt: there is none.
  std::string launch_token_file;
  std::optional<LaunchBoard> board;
  // The address at which other nodes reach this node's workers.
  std::string address;
  // All nodes are on this machine.
  bool loopback = true;
  // --insecure was given: network traffic is not encrypted.
  bool insecure = false;
};

// The caller must have started the supervisor, because this may start gRPC. With `etcd`, a server
// of this launcher shares its state with those at the other endpoints. INVALID_ARGUMENT (token,
// TLS, address) and other errors name what is wrong. `say` prints a line for the user if this takes
// longer than usual.
absl::StatusOr<Attachment> Attach(const RunOptions& options,
                                  const std::optional<log::EtcdOptions>& etcd,
                                  const std::function<void(const std::string&)>& say);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_ATTACH_H_
