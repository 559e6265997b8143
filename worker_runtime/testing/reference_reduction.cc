#include "worker_runtime/testing/reference_reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gtest/gtest.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::testing {
namespace {

void Write(DataType type, double value, char* to) {
  const float narrow = static_cast<float>(value);
  switch (type) {
    case DataType::kFloat32:
      memcpy(to, &narrow, 4);
      return;
    case DataType::kFloat64:
      memcpy(to, &value, 8);
      return;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return reduce::NarrowFromFloat(type, &narrow, 1, to);
    case DataType::kInt32: {
      const int32_t integer = static_cast<int32_t>(value);
      memcpy(to, &integer, 4);
      return;
    }
    case DataType::kInt64: {
      const int64_t integer = static_cast<int64_t>(value);
      memcpy(to, &integer, 8);
      return;
    }
    case DataType::kUint8:
      *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(value);
      return;
  }
}

double Read(DataType type, const char* from) {
  switch (type) {
    case DataType::kFloat32: {
      float value;
      memcpy(&value, from, 4);
      return value;
    }
    case DataType::kFloat64: {
      double value;
      memcpy(&value, from, 8);
      return value;
    }
    case DataType::kFloat16:
    case DataType::kBfloat16: {
      float value;
      reduce::WidenToFloat(type, from, 1, &value);
      return value;
    }
    case DataType::kInt32: {
      int32_t value;
      memcpy(&value, from, 4);
      return value;
    }
    case DataType::kInt64: {
      int64_t value;
      memcpy(&value, from, 8);
      return static_cast<double>(value);
    }
    case DataType::kUint8:
      return *reinterpret_cast<const uint8_t*>(from);
  }
  return 0;
}

// Returns the allowed deviation from the float64 result, relative to the sum of the magnitudes.
double Tolerance(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 1e-6;
    case DataType::kFloat64:
      return 1e-14;
    case DataType::kFloat16:
      return 2e-3;
    case DataType::kBfloat16:
      return 1.6e-2;
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUint8:
      return 0;
  }
  return 0;
}

// Element `i` of the reduction of all ranks' elements.
struct Expected {
  double value = 0;
  double magnitude = 0;  // what errors are relative to
};

Expected Reference(const std::vector<std::vector<char>>& inputs, DataType type, ReduceOp op,
                   bool multiplies, size_t i) {
  Expected expected;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    double value = Read(type, inputs[rank].data() + i * SizeOf(type));
    if (multiplies) value *= FactorOf(static_cast<int>(rank));
    expected.magnitude += std::abs(value);
    if (rank == 0) {
      expected.value = value;
    } else if (op == ReduceOp::kMax) {
      expected.value = std::max(expected.value, value);
    } else if (op == ReduceOp::kMin) {
      expected.value = std::min(expected.value, value);
    } else {
      expected.value += value;
    }
  }
  if (op == ReduceOp::kAverage) expected.value /= static_cast<double>(inputs.size());
  return expected;
}

}  // namespace

std::vector<char> Elements(DataType type, size_t count, int rank, uint32_t seed) {
  std::vector<char> data(count * SizeOf(type));
  // The standard distributions are too slow: the suite makes very many of these.
  uint64_t state = (uint64_t{seed} << 32) + static_cast<uint64_t>(rank) + 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<uint32_t>(state >> 40);  // 24 of them
    // The values are small enough that the sum of eight fits every type.
    Write(type, IsFloatingPoint(type) ? bits * 0x1p-21 - 4 : bits % 32,
          data.data() + i * SizeOf(type));
  }
  return data;
}

double FactorOf(int rank) { return 0.25 * (rank + 1); }

std::vector<std::vector<char>> ElementsOfAll(DataType type, size_t count, int ranks,
                                             uint32_t seed) {
  std::vector<std::vector<char>> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(Elements(type, count, rank, seed));
  return inputs;
}

void ExpectReduced(const char* data, size_t count, const std::vector<std::vector<char>>& inputs,
                   DataType type, Reduction reduction, bool multiplies, size_t first) {
  for (size_t i = 0; i < count; ++i) {
    const Expected expected = Reference(inputs, type, reduction.op, multiplies, first + i);
    ASSERT_NEAR(Read(type, data + i * SizeOf(type)), expected.value,
                Tolerance(type) * expected.magnitude)
        << backend::Name(reduction.op) << " of " << backend::Name(type) << ", element "
        << first + i;
  }
}

}  // namespace cadre::testing
