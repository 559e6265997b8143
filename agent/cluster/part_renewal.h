// Keeps what the launchers that run here were given good: when the agent's token is replaced, they
// get tokens made from the new one; when its certificate authority is, they get that. They read
// both anew with their next connection.
#ifndef CADRE_AGENT_CLUSTER_PART_RENEWAL_H_
#define CADRE_AGENT_CLUSTER_PART_RENEWAL_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/cluster/part_start.h"
#include "base/threads/file_thread.h"
#include "base/threads/repeating_thread.h"

namespace cadre::agent {

// One thread, of its own, looks every second; of file systems it blocks on the one of the parts'
// directories alone.
class PartRenewal {
 public:
  // `log`: lines for whoever looks after the agent, from that thread. May be null.
  explicit PartRenewal(PartStartOptions options,
                       std::function<void(const std::string&)> log = nullptr);
  PartRenewal(const PartRenewal&) = delete;
  PartRenewal& operator=(const PartRenewal&) = delete;

  void Start();
  // One look; for tests, before Start().
  void Look();

 private:
  // Whether it has another one now.
  bool RenewToken(const std::string& directory);

  const PartStartOptions options_;
  const std::function<void(const std::string&)> log_;
  std::string token_;
  FileThread files_{{}};  // for the certificate authority
  // Those before. A part that begins while the token is replaced may have got one made from them.
  std::vector<std::string> former_;
  // Ends first, since it uses the others.
  std::optional<RepeatingThread> thread_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_PART_RENEWAL_H_
