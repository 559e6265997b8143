// On which step all ranks go on, and from where those without it get their state. Pure.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_AGREEMENT_H_
#define CADRE_WORKER_RUNTIME_MEMORY_AGREEMENT_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace cadre::memory {

// A state of `rank` that lies on `node`. All fields have 8 bytes: ranks exchange it as it is.
struct Holding {
  int64_t rank = 0;
  int64_t node = 0;
  int64_t step = 0;
  int64_t generation = 0;
  int64_t bytes = 0;
};
inline constexpr size_t kHoldingFields = sizeof(Holding) / sizeof(int64_t);

// `from` sends `rank` its state.
struct Delivery {
  int rank = 0;
  int from = 0;
  int64_t bytes = 0;
};

struct Agreement {
  int64_t step = 0;
  uint64_t generation = 0;
  std::vector<Delivery> deliveries;
};

// The newest step that every rank's state is somewhere of, saved in one and the same generation.
// That of the later generation comes first: nobody who missed how it went back counts against it.
// `nodes`: of each rank; ranks of a node see what lies there. nullopt: there is none.
std::optional<Agreement> Agree(const std::vector<Holding>& holdings, const std::vector<int>& nodes);

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_AGREEMENT_H_
