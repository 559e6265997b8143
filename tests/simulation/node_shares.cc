#include "tests/simulation/node_shares.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::simulation {
namespace {

struct Amount {
  uint64_t cpus = 0;
  uint64_t gpus = 0;
  uint64_t memory = 0;

  static Amount Of(const v1::Part& part) { return {part.cpus(), part.gpus(), part.memory()}; }
  void Add(const Amount& more) {
    cpus += more.cpus;
    gpus += more.gpus;
    memory += more.memory;
  }
  void RaiseTo(const Amount& other) {
    cpus = std::max(cpus, other.cpus);
    gpus = std::max(gpus, other.gpus);
    memory = std::max(memory, other.memory);
  }
  void LimitTo(const Amount& other) {
    cpus = std::min(cpus, other.cpus);
    gpus = std::min(gpus, other.gpus);
    memory = std::min(memory, other.memory);
  }
  // Memory of which there is none is not counted.
  bool IsIn(const Amount& all) const {
    return cpus <= all.cpus && gpus <= all.gpus && (all.memory == 0 || memory <= all.memory);
  }
};

std::string Text(const Amount& amount) {
  return absl::StrCat(Count(amount.cpus, "CPU"), ", ", Count(amount.gpus, "GPU"), ", ",
                      SizeText(amount.memory));
}

// Returns the least that these steps of one batch allocation use together.
Amount UseOf(const std::vector<const NodeShare*>& steps) {
  Amount use, largest;
  for (const NodeShare* step : steps) {
    if (!step->overlaps) use.Add(Amount::Of(step->part));
    largest.RaiseTo(Amount::Of(step->part));
  }
  use.RaiseTo(largest);
  return use;
}

bool MayShareGpus(const NodeShare& a, const NodeShare& b) {
  if (a.part.within() == b.part.id() || b.part.within() == a.part.id()) return true;
  return a.part.within() != 0 && a.part.within() == b.part.within() && (a.overlaps || b.overlaps);
}

std::string WhatGpuIsGivenTwice(const NodeSize& node, const std::vector<NodeShare>& shares) {
  std::map<uint32_t, std::vector<const NodeShare*>> users;
  for (const NodeShare& share : shares) {
    if (!share.gpus.has_value()) continue;
    const std::set<uint32_t> gpus(share.gpus->begin(), share.gpus->end());
    if (gpus.size() != share.part.gpus()) {
      return absl::StrCat("part ", share.part.id(), " has ", gpus.size(), " of ",
                          Count(share.part.gpus(), "GPU"));
    }
    for (const uint32_t gpu : gpus) {
      if (gpu >= node.gpus) return absl::StrCat("there is no GPU ", gpu);
      for (const NodeShare* other : users[gpu]) {
        if (MayShareGpus(share, *other)) continue;
        return absl::StrCat("GPU ", gpu, " is given to part ", other->part.id(), " and part ",
                            share.part.id());
      }
      users[gpu].push_back(&share);
    }
  }
  for (const NodeShare& step : shares) {
    const auto batch = std::find_if(shares.begin(), shares.end(), [&](const NodeShare& one) {
      return one.part.id() == step.part.within() && one.gpus.has_value();
    });
    if (batch == shares.end() || !step.gpus.has_value()) continue;
    for (const uint32_t gpu : *step.gpus) {
      if (std::find(batch->gpus->begin(), batch->gpus->end(), gpu) != batch->gpus->end()) continue;
      return absl::StrCat("GPU ", gpu, " of part ", step.part.id(), " is not one of part ",
                          batch->part.id());
    }
  }
  return "";
}

}  // namespace

std::string WhatIsGivenTwice(const NodeSize& node, const std::vector<NodeShare>& shares) {
  Amount used;
  std::set<uint64_t> own;
  std::map<uint64_t, std::vector<const NodeShare*>> steps;
  for (const NodeShare& share : shares) {
    if (share.part.within() != 0) {
      steps[share.part.within()].push_back(&share);
      continue;
    }
    own.insert(share.part.id());
    used.Add(Amount::Of(share.part));
  }
  for (const auto& [within, of_one] : steps) {
    Amount use = UseOf(of_one);
    const std::optional<v1::Part>& batch = of_one.front()->batch;
    if (batch.has_value() && !use.IsIn(Amount::Of(*batch))) {
      return absl::StrCat("steps use ", Text(use), " of part ", within, ", which has ",
                          Text(Amount::Of(*batch)));
    }
    if (own.count(within) != 0) continue;
    // What a batch job did not take does not become its steps'.
    if (batch.has_value()) use.LimitTo(Amount::Of(*batch));
    used.Add(use);
  }
  const Amount all{node.cpus, node.gpus, node.memory};
  if (!used.IsIn(all)) return absl::StrCat(Text(used), " are in use of ", Text(all));
  return WhatGpuIsGivenTwice(node, shares);
}

}  // namespace cadre::simulation
