// Nodes on which a job is not tried again for a while, because its launcher lacked something there
// that may pass: a full disk, say. Kept in memory: a server that began anew tries them at once.
// Pure; one thread.
#ifndef CADRE_RENDEZVOUS_CLUSTER_RESTS_H_
#define CADRE_RENDEZVOUS_CLUSTER_RESTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/time.h"

namespace cadre::cluster {

class Rests {
 public:
  // `submission`: the job's number. `failed_starts`: so many of its launchers have not begun by
  // now; from 1 s on, each doubles the time, up to a minute.
  void Add(uint64_t submission, const std::string& node, uint32_t failed_starts, MonoTime now);
  // Forgets those that are over; false: none is.
  bool EndDue(MonoTime now);
  MonoTime NextDeadline() const;
  // Names of nodes, by the job's number.
  std::map<uint64_t, std::set<std::string>> ByJob() const;

 private:
  std::set<std::tuple<MonoTime, uint64_t, std::string>> rests_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_RESTS_H_
