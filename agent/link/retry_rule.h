// When a link tries again. Before a server has taken the node in, a refusal is somebody's mistake,
// and the link ends: whoever made it is there to hear of it. Afterwards a job may run here. A
// server that does not know the token is then a stranger in the server's place, or has had its
// token replaced before the copy here, and TLS files that cannot be used are being replaced: the
// server is away, and for how long that may be is not the link's to say. Pure; one thread.
#ifndef CADRE_AGENT_LINK_RETRY_RULE_H_
#define CADRE_AGENT_LINK_RETRY_RULE_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cadre::agent {

// The longest pause after a refusal.
inline constexpr absl::Duration kRefusedBackoffMax = absl::Seconds(15);

class RetryRule {
 public:
  // `returns_after_refusal`: as GrpcLinkOptions has it.
  explicit RetryRule(bool returns_after_refusal);

  // What an attempt ends with for which the TLS files cannot be used.
  absl::Status FilesUnusable(const absl::Status& status) const;
  // What one ends with that was refused, where the token is another by now: the server had that
  // already.
  static absl::Status TokenReplaced(const absl::Status& refused);

  struct Next {
    // What on_down is told.
    absl::Status status;
    bool tries_again = false;
    // The longest before it does.
    absl::Duration pause;
  };
  // The servers were tried in turn; this is how it ended with the last. `welcome`: it had taken the
  // node in.
  Next RoundEnded(const absl::Status& status, bool welcome);

 private:
  const bool returns_after_refusal_;
  bool ever_welcome_ = false;
  absl::Duration pause_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_RETRY_RULE_H_
