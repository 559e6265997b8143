// What the supervisor starts and stops as one, which its frames call a generation. That is a
// generation of the job, unless workers may outlive theirs: then each worker is one by itself, so
// that it can be stopped alone and be kept. Pure; one thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_UNITS_H_
#define CADRE_AGENT_WORKERS_WORKER_UNITS_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace cadre {

class WorkerUnits {
 public:
  // The next generation: nothing is there but what was kept of the one before.
  void Begin(uint64_t generation, bool each_alone, const std::set<uint32_t>& kept);
  // A worker is started; returns its unit. Its number is never used again while generations grow.
  uint64_t Add(uint32_t local_rank);

  // A process that stands by is a unit of no generation, and is neither stopped nor counted with
  // one, until it takes a place. Its unit, of which the number is never used again.
  uint64_t AddStandby();
  void PlaceStandby(uint64_t unit, uint32_t local_rank) { units_[unit] = {local_rank}; }

  // Of the worker of this unit, which was started as `said`; Has(unit).
  uint32_t LocalRank(uint64_t unit, uint32_t said) const;

  // Whether the unit is one of this generation's.
  bool Has(uint64_t unit) const { return units_.count(unit) != 0; }
  std::vector<uint64_t> All() const;
  // The units to stop, of those that are there, so that only kept local ranks are left.
  std::vector<uint64_t> Stop(const std::set<uint32_t>& kept);
  // Of the last Stop().
  const std::set<uint32_t>& kept() const { return kept_; }
  // No process of the unit is left.
  void Gone(uint64_t unit);
  // A stop was asked for, and nothing but kept workers is there.
  bool Stopped() const;

 private:
  bool IsKept(const std::set<uint32_t>& local_ranks) const;

  uint64_t generation_ = 0;
  bool each_alone_ = false;
  bool stopping_ = false;
  std::set<uint32_t> kept_;
  uint64_t standbys_ = 0;
  // Local ranks of each unit that is there.
  std::map<uint64_t, std::set<uint32_t>> units_;
};

}  // namespace cadre

#endif  // CADRE_AGENT_WORKERS_WORKER_UNITS_H_
