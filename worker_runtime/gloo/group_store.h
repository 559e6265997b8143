// Lets the ranks of a group find each other through the communicator that they were split from.
#ifndef CADRE_WORKER_RUNTIME_GLOO_GROUP_STORE_H_
#define CADRE_WORKER_RUNTIME_GLOO_GROUP_STORE_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gloo/rendezvous/store.h"
#include "worker_runtime/communicator.h"

namespace cadre::gloo {

// How often Gloo sets a key of its own while it connects: its host's name, then its addresses.
constexpr int kGlooSets = 2;

// Used by one thread. Each set is an exchange between all ranks of the parent, in which those of no
// group take part with nothing. Throws gloo::IoException, as Gloo expects; status() is then the
// reason.
class GroupStore : public ::gloo::rendezvous::Store {
 public:
  // `members`: the group's ranks in the parent.
  GroupStore(Communicator* parent, std::vector<int> members, absl::Duration timeout);

  // Takes part in the exchanges that are left, with nothing.
  absl::Status Finish();

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

  const absl::Status& status() const { return status_; }

 private:
  absl::Status Exchange(std::string value);
  void Check(const absl::Status& status);

  Communicator& parent_;
  const std::vector<int> members_;
  const absl::Duration timeout_;
  int exchanges_ = 0;
  std::vector<std::string> values_;  // of the last exchange, by rank in the parent
  absl::Status status_;
};

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_GROUP_STORE_H_
