// The parameters that a training program shares with the other ranks, and checks that all ranks
// mean the same by them.
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
  // Where `value` stands for memory elsewhere or of another type: what that is ("bfloat16 on
  // cuda"). Compared between ranks.
  std::string kept_as = {};
  // Whether that is float16, whose largest number is 65,504.
  bool kept_as_float16 = false;
  // The caller reduces the gradient itself, on a device: a Reducer has no memory for it, and only
  // keeps account of which ranks had one. The same on all ranks.
  bool reduced_elsewhere = false;
  // Those that are reduced elsewhere share a bucket with their own kind alone: where one rank is to
  // have the gradient, that rank. The same on all ranks.
  int bucket_kind = 0;
};

// INVALID_ARGUMENT: there are none, or more than `most`, two have the same name, or a type is not
// float32 or float64. Pure.
Status CheckReducible(Span<const Parameter> parameters, size_t most);

// Collective. OK on every rank when all have the same names, types, counts and shapes in the same
// order as rank 0; else INVALID_ARGUMENT on every rank, naming the parameter and both ranks.
Status CheckSameParameters(Communicator& communicator, Span<const Parameter> parameters,
                           std::chrono::nanoseconds timeout);

// Collective. Rank 0's values on every rank.
Status BroadcastParameters(Communicator& communicator, Span<const Parameter> parameters,
                           std::chrono::nanoseconds timeout);

// Moves large values into huge pages, in place, as many as the kernel gives within `patience`: what
// reads and writes them from one end to the other takes less time then. Threads that use the values
// meanwhile wait. Only speed depends on it. Needs Linux 6.1.
void MoveToHugePages(Span<const Parameter> parameters, std::chrono::nanoseconds patience);

// Equal for equal bits; never 0.
uint64_t Fingerprint(Span<const Parameter> parameters);

// Collective. A hash of all values when they are bitwise equal on every rank; else DATA_LOSS on
// every rank, naming the first parameter that differs and the ranks where it does.
Result<uint64_t> CheckEqualValues(Communicator& communicator, Span<const Parameter> parameters,
                                  std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_PARAMETER_H_
