// How a launcher or a command and a server protect their connections: the token, where it comes
// from, and whether the connection is encrypted.
#ifndef CADRE_LAUNCHER_ATTACH_SECURITY_H_
#define CADRE_LAUNCHER_ATTACH_SECURITY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/tls/transport_security.h"

namespace cadre::launcher {

// A token and its source.
struct FoundToken {
  std::string token;
  // The file from which it is read again; empty: it does not change.
  std::string file = "";
};

// The token for the server at `host`: from `token_file` if that is named ("-" is standard input),
// otherwise, on loopback, the one that this user's processes share. Off loopback a file is
// required. INVALID_ARGUMENT says what to do.
absl::StatusOr<FoundToken> FindToken(const std::string& token_file, const std::string& host,
                                     int port, bool loopback);

// Mutual TLS with --tls-dir; otherwise TLS with the key that the token names. Clear text with
// --insecure, and on loopback if the token names no key. Both sides have the token and so decide
// alike. INVALID_ARGUMENT: a token without a key, off
// loopback; or both flags. Pure.
absl::StatusOr<rpc::TransportSecurity> SecurityOf(const std::string& tls_dir, bool insecure,
                                                  const FoundToken& token, bool loopback);

// The server's side of the same: with --insecure it serves clients in clear text and clients that
// use TLS with the key that the token names. Pure.
rpc::TransportSecurity ForServer(rpc::TransportSecurity security, const FoundToken& token);

// What --insecure means for a client, in one line.
inline constexpr char kInsecureNotice[] =
    "--insecure: connections are not encrypted and the server is not authenticated; anyone who "
    "reads the network, or answers in the server's place, gets the token and all its rights";

// What --insecure means for a server.
inline constexpr char kServesClearNotice[] =
    "--insecure: the server also accepts connections in clear text; anyone who reads the network "
    "gets the tokens of those clients and all their rights";

// The token that a user's processes on one machine share for the server on a port of loopback: a
// file in RuntimeDirectory(), which the first process creates. Each process that uses it holds a
// lock on it, which shows when it is unused; then it is removed, by its last user or, if that was
// killed, by the next process for any port.
//
// LoopbackToken uses the token until this process ends, or until EndLoopbackTokens(). Thread safe.
absl::StatusOr<std::string> LoopbackToken(int port);
void EndLoopbackTokens();

// A use of the token for the lifetime of the object.
class LoopbackTokenUse {
 public:
  // Errors: as ReadTokenFile; UNAVAILABLE: others create and remove the file all the time.
  static absl::StatusOr<std::unique_ptr<LoopbackTokenUse>> Begin(int port);
  // Removes the file if no other process uses it.
  ~LoopbackTokenUse();
  LoopbackTokenUse(const LoopbackTokenUse&) = delete;
  LoopbackTokenUse& operator=(const LoopbackTokenUse&) = delete;

  const std::string& token() const { return token_; }

 private:
  LoopbackTokenUse(std::string path, int fd, std::string token);
  const std::string path_;
  const int fd_;
  const std::string token_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_SECURITY_H_
