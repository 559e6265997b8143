#include "worker_runtime/hooks/low_rank.h"

#include <algorithm>
#include <cmath>

namespace cadre::hooks {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// splitmix64.
uint64_t NextBits(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// In (0, 1].
double NextUniform(uint64_t& state) {
  return (static_cast<double>(NextBits(state) >> 11) + 1) * 0x1p-53;
}

}  // namespace

std::optional<MatrixShape> CompressibleShape(Span<const int64_t> shape, size_t rank,
                                             double min_compression_rate) {
  if (shape.size() < 2) return std::nullopt;
  MatrixShape matrix{static_cast<size_t>(shape[0]), 1, 0};
  for (size_t d = 1; d < shape.size(); ++d) matrix.columns *= static_cast<size_t>(shape[d]);
  matrix.rank = std::min({matrix.rows, matrix.columns, rank});
  const double compressed =
      static_cast<double>(matrix.rows + matrix.columns) * static_cast<double>(matrix.rank);
  const double whole = static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns);
  if (!(compressed * min_compression_rate < whole)) return std::nullopt;
  return matrix;
}

void MultiplyByQ(const MatrixShape& shape, const float* m, const float* q, float* p) {
  for (size_t i = 0; i < shape.rows; ++i) {
    float* const out = p + i * shape.rank;
    std::fill(out, out + shape.rank, 0.0f);
    const float* const row = m + i * shape.columns;
    for (size_t j = 0; j < shape.columns; ++j) {
      for (size_t k = 0; k < shape.rank; ++k) out[k] += row[j] * q[j * shape.rank + k];
    }
  }
}

void MultiplyByP(const MatrixShape& shape, const float* m, const float* p, float* q) {
  std::fill(q, q + shape.q_count(), 0.0f);
  for (size_t i = 0; i < shape.rows; ++i) {
    const float* const row = m + i * shape.columns;
    const float* const in = p + i * shape.rank;
    for (size_t j = 0; j < shape.columns; ++j) {
      for (size_t k = 0; k < shape.rank; ++k) q[j * shape.rank + k] += row[j] * in[k];
    }
  }
}

void Recompose(const MatrixShape& shape, const float* p, const float* q, float* m) {
  for (size_t i = 0; i < shape.rows; ++i) {
    for (size_t j = 0; j < shape.columns; ++j) {
      float value = 0;
      for (size_t k = 0; k < shape.rank; ++k) {
        value += p[i * shape.rank + k] * q[j * shape.rank + k];
      }
      m[i * shape.columns + j] = value;
    }
  }
}

void Orthogonalize(float* matrix, size_t rows, size_t columns, double epsilon) {
  for (size_t c = 0; c < columns; ++c) {
    double square = 0;
    for (size_t i = 0; i < rows; ++i) {
      square += static_cast<double>(matrix[i * columns + c]) * matrix[i * columns + c];
    }
    const double norm = std::sqrt(square) + epsilon;
    if (norm == 0) continue;
    for (size_t i = 0; i < rows; ++i) {
      matrix[i * columns + c] = static_cast<float>(matrix[i * columns + c] / norm);
    }
    for (size_t other = c + 1; other < columns; ++other) {
      double product = 0;
      for (size_t i = 0; i < rows; ++i) {
        product += static_cast<double>(matrix[i * columns + c]) * matrix[i * columns + other];
      }
      for (size_t i = 0; i < rows; ++i) {
        matrix[i * columns + other] -= static_cast<float>(product * matrix[i * columns + c]);
      }
    }
  }
}

void FillRandom(uint64_t seed, uint64_t step, uint64_t parameter, Span<float> values) {
  uint64_t state = seed;
  state = NextBits(state) ^ step;
  state = NextBits(state) ^ parameter;
  for (float& value : values) {
    // The Box-Muller transform, of which one of the two values is used.
    const double radius = std::sqrt(-2 * std::log(NextUniform(state)));
    value = static_cast<float>(radius * std::cos(kTwoPi * NextUniform(state)));
  }
}

}  // namespace cadre::hooks
