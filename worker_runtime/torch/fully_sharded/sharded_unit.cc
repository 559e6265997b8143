#include "cadre/torch/sharded_unit.h"

#include <map>
#include <mutex>

namespace cadre::nn {
namespace {

// Of the process: a module does not know what it is a part of.
struct Units {
  std::mutex mutex;
  std::map<const torch::nn::Module*, ShardedUnit*> of;
};

Units& AllUnits() {
  static auto* const units = new Units;
  return *units;
}

}  // namespace

Status ShardedUnit::Announce() {
  Units& units = AllUnits();
  const std::lock_guard<std::mutex> lock(units.mutex);
  if (units.of.emplace(module_, this).second) return OkStatus();
  return FailedPreconditionError("the module is sharded already");
}

ShardedUnit::~ShardedUnit() {
  Units& units = AllUnits();
  const std::lock_guard<std::mutex> lock(units.mutex);
  const auto at = units.of.find(module_);
  if (at != units.of.end() && at->second == this) units.of.erase(at);
}

ShardedUnit* ShardedUnit::Of(const torch::nn::Module& module) {
  Units& units = AllUnits();
  const std::lock_guard<std::mutex> lock(units.mutex);
  const auto at = units.of.find(&module);
  return at == units.of.end() ? nullptr : at->second;
}

}  // namespace cadre::nn
