// Explains the status of a connection, or of an attempt to connect, to the user who started the
// agent or sends the server a request, and decides whether the agent's link retries. Pure.
#ifndef CADRE_AGENT_LINK_LINK_STATUS_H_
#define CADRE_AGENT_LINK_LINK_STATUS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cadre::agent {

// INVALID_ARGUMENT unless it is host:port with a port in 1..65535.
absl::Status CheckEndpoint(const std::string& endpoint);

// How a stream, or a call, ended. `opened`: a Cadre server had answered before. Never OK: for the
// agent, a stream that the server ends properly is UNAVAILABLE too.
absl::Status DescribeEnd(const std::string& endpoint, const absl::Status& status, bool opened);

// Whether the connection attempt that ended with `status` was refused: the machine answered, but no
// process listens at that port.
bool IsRefused(const absl::Status& status);

// The NOT_FOUND status for a server that ran in a launcher, kept its state in memory only, and has
// ended with that launcher.
absl::Status LauncherIsGone(const std::string& endpoint);

// Combines the errors of all servers into one status.
absl::Status NoneReached(const std::vector<absl::Status>& failed);

// Whether a retry cannot help.
bool IsFinal(const absl::Status& status);

// The longest backoff after a refusal.
inline constexpr absl::Duration kRefusedBackoffMax = absl::Seconds(15);

// When a link retries. Before a server has welcomed the node, a refusal is a user's mistake, and
// the link ends so that the user learns of it. Afterwards a job may run here, so the server only
// counts as away, for a time that the link does not limit: a server that does not know the token is
// then a foreign one in its place, or has had its token replaced before the copy here; and unusable
// TLS files are being replaced. One thread.
class RetryRule {
 public:
  // `returns_after_refusal`: as in GrpcLinkOptions.
  explicit RetryRule(bool returns_after_refusal);

  // The status of an attempt for which the TLS files cannot be used.
  absl::Status FilesUnusable(const absl::Status& status) const;
  // The status of a refused attempt after which the local token was found replaced: the server
  // already has the new one.
  static absl::Status TokenReplaced(const absl::Status& refused);

  struct Next {
    // The status for on_down.
    absl::Status status;
    bool retries = false;
    // The upper bound of the pause before the retry.
    absl::Duration backoff;
  };
  // All servers were tried in turn; `status` is the last one's. `welcomed`: it had welcomed the
  // node.
  Next RoundEnded(const absl::Status& status, bool welcomed);

 private:
  const bool returns_after_refusal_;
  bool ever_welcomed_ = false;
  absl::Duration backoff_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_LINK_STATUS_H_
