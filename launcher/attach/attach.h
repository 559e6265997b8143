// How one launcher takes part in the rendezvous: alone, as the one that serves it, or as a client.
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
  // In the order of construction: the link ends first, the core last.
  std::unique_ptr<host::CoreThread> core;
  std::unique_ptr<service::Server> server;
  // With etcd, instead of a core of its own.
  std::unique_ptr<service::Replica> replica;
  std::unique_ptr<agent::ServerLink> link;
  // host:port as people know it, of several separated by commas; empty when alone.
  std::string endpoint;
  // The one of them that a server of ours is at; empty when there is none.
  std::string serves;
  // Why other machines do not reach it though its name does not say so: "head is 127.0.1.1 here".
  std::string only_here;
  // What --token-file gave, where it was named and is needed; it can be read but once where that is
  // the standard input.
  std::string token;
  // The file with the launch's token, and what its nodes tell each other without a connection;
  // whoever serves removes both at the end, and leaves there how the launch ended. Empty, nothing:
  // there is none.
  std::string launch_token_file;
  std::optional<LaunchBoard> board;
  // Address under which other nodes reach this one's workers.
  std::string address;
  // All nodes are on this machine.
  bool loopback = true;
  // What crosses the network is in clear, because --insecure said so.
  bool insecure = false;
};

// The caller has started the supervisor: this may start gRPC. With `etcd` a server of ours shares
// its state there with those at the other endpoints. INVALID_ARGUMENT (token, TLS, address) and
// others name what is wrong.
// `say`: a line for the user where that takes longer.
absl::StatusOr<Attachment> Attach(const RunOptions& options,
                                  const std::optional<log::EtcdOptions>& etcd,
                                  const std::function<void(const std::string&)>& say);

// The token for the server at `host`: from `token_file` if that is named, else, on loopback, the
// one this user's processes share. Off loopback one is needed. INVALID_ARGUMENT says what to do.
absl::StatusOr<FoundToken> FindToken(const std::string& token_file, const std::string& host,
                                     int port, bool loopback);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_ATTACH_H_
