// The parameters that a training program shares with the other ranks, and checks that they agree on
// all ranks.
#ifndef CADRE_PARAMETER_H_
#define CADRE_PARAMETER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status.h"

namespace cadre {

struct Parameter {
  std::string name;
  // The values that the optimizer updates; not owned.
  Buffer value;
  // Compared between ranks where it is given.
  std::vector<int64_t> shape;
  // If `value` is a copy of memory elsewhere or of another type: a description of that ("bfloat16
  // on cuda"). Compared between ranks.
  std::string kept_as = {};
  // Whether the original is float16, whose largest number is 65,504.
  bool kept_as_float16 = false;
  // The caller reduces the gradient itself, on a device: a Reducer has no memory for it and only
  // tracks which ranks had one. The same on all ranks.
  bool reduced_elsewhere = false;
  // Parameters with reduced_elsewhere share buckets only with others of the same kind: if the
  // gradient goes to one rank only, the kind is that rank. The same on all ranks.
  int bucket_kind = 0;
};

// INVALID_ARGUMENT: there are no parameters, or more than `most`; two have the same name; or a type
// is not float32 or float64. Pure.
Status CheckReducible(Span<const Parameter> parameters, size_t most);

// Collective. OK on every rank if all have the same names, types, counts and shapes in the same
// order as rank 0; otherwise INVALID_ARGUMENT on every rank, naming the parameter and both ranks.
Status CheckSameParameters(Communicator& communicator, Span<const Parameter> parameters,
                           std::chrono::nanoseconds timeout);

// Collective. Copies rank 0's values to every rank.
Status BroadcastParameters(Communicator& communicator, Span<const Parameter> parameters,
                           std::chrono::nanoseconds timeout);

// Moves large values into huge pages, in place, as many as the kernel provides within `patience`,
// which makes sequential passes over them faster. Threads that access the values meanwhile are
// blocked. Affects only speed. Needs Linux 6.1.
void MoveToHugePages(Span<const Parameter> parameters, std::chrono::nanoseconds patience);

// Equal for bitwise equal values; never 0.
uint64_t Fingerprint(Span<const Parameter> parameters);

// Collective. Returns a hash of all values if they are bitwise equal on every rank; otherwise
// DATA_LOSS on every rank, naming the first parameter that differs and the ranks on which it does.
Result<uint64_t> CheckEqualValues(Communicator& communicator, Span<const Parameter> parameters,
                                  std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_PARAMETER_H_
