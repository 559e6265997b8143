// Input elements for collectives in tests, and float64 reductions of them to compare with.
#ifndef CADRE_WORKER_RUNTIME_TESTING_REFERENCE_REDUCTION_H_
#define CADRE_WORKER_RUNTIME_TESTING_REFERENCE_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cadre/communicator.h"

namespace cadre::testing {

// Returns one rank's elements; they depend on nothing but the arguments.
std::vector<char> Elements(DataType type, size_t count, int rank, uint32_t seed);
// Returns the elements of all ranks, in rank order.
std::vector<std::vector<char>> ElementsOfAll(DataType type, size_t count, int ranks, uint32_t seed);

// Returns the factor with which `rank` multiplies its elements, in reductions that multiply.
double FactorOf(int rank);

// Compares `count` elements at `data` with the reference from element `first` on.
void ExpectReduced(const char* data, size_t count, const std::vector<std::vector<char>>& inputs,
                   DataType type, Reduction reduction, bool multiplies, size_t first);

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_REFERENCE_REDUCTION_H_
