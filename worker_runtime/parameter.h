// The parameters that a training program shares with the other ranks, and checks that all ranks
// mean the same by them.
#ifndef CADRE_WORKER_RUNTIME_PARAMETER_H_
#define CADRE_WORKER_RUNTIME_PARAMETER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/communicator.h"

namespace cadre {

struct Parameter {
  std::string name;
  // The values that the optimizer updates; not owned.
  Buffer value;
  // Compared between ranks where it is given.
  std::vector<int64_t> shape;
};

// INVALID_ARGUMENT: there are none, or more than `most`, two have the same name, or a type is not
// float32 or float64. Pure.
absl::Status CheckReducible(absl::Span<const Parameter> parameters, size_t most);

// Collective. OK on every rank when all have the same names, types, counts and shapes in the same
// order as rank 0; else INVALID_ARGUMENT on every rank, naming the parameter and both ranks.
absl::Status CheckSameParameters(Communicator& communicator, absl::Span<const Parameter> parameters,
                                 absl::Duration timeout);

// Collective. Rank 0's values on every rank.
absl::Status BroadcastParameters(Communicator& communicator, absl::Span<const Parameter> parameters,
                                 absl::Duration timeout);

// Equal for equal bits; never 0.
uint64_t Fingerprint(absl::Span<const Parameter> parameters);

// Collective. A hash of all values when they are bitwise equal on every rank; else DATA_LOSS on
// every rank, naming the first parameter that differs and the ranks where it does.
absl::StatusOr<uint64_t> CheckEqualValues(Communicator& communicator,
                                          absl::Span<const Parameter> parameters,
                                          absl::Duration timeout);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_PARAMETER_H_
