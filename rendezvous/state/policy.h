// Checks a job's spec against limits, and fills in its defaults. Pure.
#ifndef CADRE_RENDEZVOUS_STATE_POLICY_H_
#define CADRE_RENDEZVOUS_STATE_POLICY_H_

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::state {

constexpr uint32_t kMaxNodes = 100000;
constexpr uint32_t kMaxSlotsPerNode = 4096;
// Slots of all of a job's nodes together.
constexpr uint64_t kMaxSlotsPerJob = 1 << 20;
constexpr size_t kMaxJobNameBytes = 63;
constexpr size_t kMaxNodeTextBytes = 255;
constexpr size_t kMaxSpecBytes = 1 << 20;
// The nodes and the labels that a job may name, each, and the jobs that it may depend on.
constexpr size_t kMaxPlacementNames = 4096;
constexpr size_t kMaxDependencies = 256;
// The end of the year 9999.
constexpr int64_t kMaxUnixMs = 253402300799999;
// The length of one line that is shown to people.
constexpr size_t kMaxMessageBytes = 1024;

struct Policy {
  // How many nodes a generation has.
  uint32_t min = 1;
  uint32_t max = 1;
  uint32_t unit = 1;
  absl::Duration settle = absl::Seconds(3);
  absl::Duration join_timeout = absl::Minutes(10);
  absl::Duration start_timeout = absl::Minutes(5);
  absl::Duration stop_grace = absl::Seconds(30);
  absl::Duration total_timeout = absl::InfiniteDuration();
  uint32_t restart_max = 0;
  absl::Duration restart_window = absl::InfiniteDuration();
  absl::Duration backoff_min = absl::Seconds(1);
  absl::Duration backoff_max = absl::Minutes(1);
  std::set<v1::FailureCause> retried;
  std::set<uint32_t> never_exit_codes;
  bool in_place = false;
  // Whether a submitted job goes on with another node when it loses one.
  bool requeue = true;
  // How long before the end of total_timeout the workers get warning_signal; zero: they do not.
  absl::Duration warning;
  int warning_signal = 0;
  v1::ElasticPolicy::ScaleUp scale_up = v1::ElasticPolicy::AT_CHECKPOINT;

  // The largest number of nodes that the job may have.
  uint32_t target() const { return max / unit * unit; }
  // Returns the largest number of nodes that a generation may have with `present` nodes; 0 if they
  // are too few.
  uint32_t SizeFor(uint32_t present) const {
    const uint32_t size = (present < max ? present : max) / unit * unit;
    return size >= min ? size : 0;
  }
};

Policy PolicyOf(const v1::JobSpec& spec);

bool IsJobName(absl::string_view name);
bool IsSignal(int signal);
// Checks the nodes and labels that a job names. INVALID_ARGUMENT.
absl::Status CheckPlacement(const v1::Placement& placement);
// Checks the name of a cluster node. INVALID_ARGUMENT, with a message that describes valid names.
absl::Status CheckNodeName(absl::string_view name);

// INVALID_ARGUMENT naming the field, its value and what was expected.
absl::Status CheckSpec(const v1::JobSpec& spec);
absl::Status CheckJoin(const v1::Join& join);
// INVALID_ARGUMENT naming the first field in which a joining node's spec differs from the job's.
absl::Status CheckSameJob(const v1::JobSpec& job, const v1::JobSpec& joining);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_POLICY_H_
