#include "agent/workers/worker_units.h"

#include <algorithm>

namespace cadre {
namespace {

// More than a node has workers.
constexpr uint64_t kUnitsPerGeneration = 4096;
// The numbers of those that stood by, which no generation reaches.
constexpr uint64_t kFirstStandby = uint64_t{1} << 63;

}  // namespace

void WorkerUnits::Begin(uint64_t generation, bool each_alone, const std::set<uint32_t>& kept) {
  generation_ = generation;
  each_alone_ = each_alone;
  stopping_ = false;
  kept_ = kept;
  for (auto it = units_.begin(); it != units_.end();) {
    it = IsKept(it->second) ? std::next(it) : units_.erase(it);
  }
  kept_.clear();
}

uint64_t WorkerUnits::Add(uint32_t local_rank) {
  const uint64_t unit = each_alone_ ? generation_ * kUnitsPerGeneration + local_rank : generation_;
  units_[unit].insert(local_rank);
  return unit;
}

uint64_t WorkerUnits::AddStandby() { return kFirstStandby + standbys_++; }

uint32_t WorkerUnits::LocalRank(uint64_t unit, uint32_t said) const {
  return unit >= kFirstStandby ? *units_.at(unit).begin() : said;
}

std::vector<uint64_t> WorkerUnits::All() const {
  std::vector<uint64_t> all;
  for (const auto& [unit, local_ranks] : units_) all.push_back(unit);
  return all;
}

std::vector<uint64_t> WorkerUnits::Stop(const std::set<uint32_t>& kept) {
  stopping_ = true;
  kept_ = kept;
  std::vector<uint64_t> stopped;
  for (const auto& [unit, local_ranks] : units_) {
    if (!IsKept(local_ranks)) stopped.push_back(unit);
  }
  return stopped;
}

void WorkerUnits::Gone(uint64_t unit) { units_.erase(unit); }

bool WorkerUnits::Stopped() const {
  return stopping_ && std::all_of(units_.begin(), units_.end(),
                                  [this](const auto& unit) { return IsKept(unit.second); });
}

bool WorkerUnits::IsKept(const std::set<uint32_t>& local_ranks) const {
  return std::all_of(local_ranks.begin(), local_ranks.end(),
                     [this](uint32_t local_rank) { return kept_.count(local_rank) != 0; });
}

}  // namespace cadre
