#include "worker_runtime/torch/layer_products.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "absl/strings/str_cat.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

using torch::Tensor;

// More samples than this use what is in the cache often enough.
constexpr int64_t kFewSamples = 64;
// A weight of less stays in the cache.
constexpr size_t kLargeWeight = size_t{4} << 20;
// What a block may take. Of the weight in the products that read it once or write it: larger ones
// are no faster than the whole. Where it is brought in ahead: a share of the last-level cache that
// is still there when it is read.
constexpr size_t kBlockBytes = size_t{4} << 20;
constexpr size_t kAheadBytes = size_t{2} << 20;
constexpr size_t kCacheLine = 64;

bool InBlocks(const Tensor& samples, const Tensor& weight) {
  return samples.size(0) <= kFewSamples && weight.scalar_type() == torch::kFloat32 &&
         weight.is_contiguous() && weight.nbytes() >= kLargeWeight;
}

// Calls body(first, count) for all rows of the weight, as many at a time as have `bytes`.
template <typename Body>
void ForBlocks(const Tensor& weight, size_t bytes, const Body& body) {
  const int64_t rows = weight.size(0);
  const auto row_bytes = static_cast<int64_t>(weight.nbytes()) / rows;
  const int64_t block = std::max<int64_t>(1, static_cast<int64_t>(bytes) / row_bytes);
  for (int64_t first = 0; first < rows; first += block) {
    body(first, std::min(block, rows - first));
  }
}

// In the order of addresses, which is what the memory is fastest at.
void BringIn(const Tensor& rows) {
  const char* const begin = static_cast<const char*>(rows.data_ptr());
  for (size_t at = 0; at < rows.nbytes(); at += kCacheLine) {
    static_cast<void>(*static_cast<const volatile char*>(begin + at));
  }
}

}  // namespace

Tensor LayerOutput(const Tensor& input, const Tensor& weight, const c10::optional<Tensor>& bias) {
  if (!InBlocks(input, weight)) {
    return bias ? torch::addmm(*bias, input, weight.t()) : torch::mm(input, weight.t());
  }
  // A column for each sample: BLAS then takes the weight as its second factor, whose rows it copies
  // as they are.
  const Tensor columns = torch::empty({weight.size(0), input.size(0)}, input.options());
  ForBlocks(weight, kBlockBytes, [&](int64_t first, int64_t count) {
    const Tensor rows = weight.narrow(0, first, count).t();
    Tensor part = columns.narrow(0, first, count).t();
    if (bias) {
      torch::addmm_out(part, bias->narrow(0, first, count), input, rows);
    } else {
      torch::mm_out(part, input, rows);
    }
  });
  return columns.t().contiguous();
}

Tensor LayerInputGradient(const Tensor& gradient, const Tensor& weight) {
  if (!InBlocks(gradient, weight)) return torch::mm(gradient, weight);
  Tensor result = torch::zeros({gradient.size(0), weight.size(1)}, gradient.options());
  ForBlocks(weight, kAheadBytes, [&](int64_t first, int64_t count) {
    const Tensor rows = weight.narrow(0, first, count);
    BringIn(rows);
    result.addmm_(gradient.narrow(1, first, count), rows);
  });
  return result;
}

void LayerWeightGradient(const Tensor& gradient, const Tensor& input, Tensor& result) {
  if (!InBlocks(gradient, result)) {
    torch::mm_out(result, gradient.t(), input);
    return;
  }
  ForBlocks(result, kBlockBytes, [&](int64_t first, int64_t count) {
    Tensor rows = result.narrow(0, first, count);
    torch::mm_out(rows, gradient.narrow(1, first, count).t(), input);
  });
}

absl::Status MultiplyLayerFactors(const FactorProduct& product) {
  try {
    const torch::NoGradGuard no_grad;
    const auto rows = static_cast<int64_t>(product.rows);
    const auto outputs = static_cast<int64_t>(product.outputs);
    const auto inputs = static_cast<int64_t>(product.inputs);
    const Tensor gradient = torch::from_blob(const_cast<float*>(product.gradient), {rows, outputs},
                                             {static_cast<int64_t>(product.gradient_stride), 1});
    const Tensor input = torch::from_blob(const_cast<float*>(product.input), {rows, inputs});
    Tensor result = torch::from_blob(product.result, {outputs, inputs});
    torch::mm_out(result, gradient.t(), input);
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("product of factors: ", error.what()));
  }
}

}  // namespace cadre::nn
