// The arithmetic of PowerSGD on row-major matrices. Pure.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_LOW_RANK_H_
#define CADRE_WORKER_RUNTIME_HOOKS_LOW_RANK_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cadre/span.h"

namespace cadre::hooks {

// The matrix as which PowerSGD treats a gradient of some shape.
struct MatrixShape {
  size_t rows = 0;
  size_t columns = 0;
  // The rank of the approximation.
  size_t rank = 0;

  size_t p_count() const { return rows * rank; }
  size_t q_count() const { return columns * rank; }
};

// The first dimension becomes the rows and all others the columns, with rank min(rows, columns,
// rank), if the factors have less than a `min_compression_rate`-th of the elements; otherwise, and
// for vectors, nullopt.
std::optional<MatrixShape> CompressibleShape(Span<const int64_t> shape, size_t rank,
                                             double min_compression_rate);

// P = M Q, P being rows x rank.
void MultiplyByQ(const MatrixShape& shape, const float* m, const float* q, float* p);
// Q = Mᵀ P, Q being columns x rank.
void MultiplyByP(const MatrixShape& shape, const float* m, const float* p, float* q);
// M = P Qᵀ.
void Recompose(const MatrixShape& shape, const float* p, const float* q, float* m);

// Makes the columns orthonormal by Gram-Schmidt, adding `epsilon` to each norm before the division.
// A column that is zero stays zero.
void Orthogonalize(float* matrix, size_t rows, size_t columns, double epsilon);

// Normally distributed numbers, a pure function of the arguments on every platform.
void FillRandom(uint64_t seed, uint64_t step, uint64_t parameter, Span<float> values);

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_LOW_RANK_H_
