#include "cadre/hooks/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/hooks/hook_base.h"
#include "worker_runtime/hooks/low_rank.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {
namespace {

constexpr char kName[] = "power-sgd";

// If a rank's gradient was not finite, the sums are not finite either, and the same on all ranks.
// All ranks skip that step, but keeping its state would make every later step non-finite as well.
void ResetNonFinite(Span<const float> approximation, size_t parameter, FloatsByParameter& errors,
                    FloatsByParameter& qs) {
  if (std::all_of(approximation.begin(), approximation.end(),
                  [](float value) { return std::isfinite(value); })) {
    return;
  }
  errors.erase(parameter);
  qs.erase(parameter);
}

}  // namespace

// One matrix of the bucket that is being reduced.
struct PowerSgdHook::Matrix {
  GradientView gradient;
  MatrixShape shape;
  float* values = nullptr;
  size_t p = 0;  // where its P starts in the message
  size_t q = 0;
};

PowerSgdHook::PowerSgdHook(const PowerSgdOptions& options)
    : options_(options), thread_(std::make_unique<HookThread>()) {}

PowerSgdHook::~PowerSgdHook() = default;

uint64_t PowerSgdHook::bytes_given() const { return thread_->bytes_given(); }

Status PowerSgdHook::Layout(Span<const BucketView> buckets) {
  if (options_.matrix_approximation_rank < 1) {
    return InvalidArgumentError(absl::StrCat("PowerSGD cannot approximate by rank ",
                                             options_.matrix_approximation_rank,
                                             ": expected at least 1"));
  }
  if (options_.start_power_sgd_iter < 2 && (options_.use_error_feedback || options_.warm_start)) {
    return InvalidArgumentError(
        absl::StrCat("PowerSGD cannot start at step ", options_.start_power_sgd_iter,
                     ": with error feedback or warm start expected at least 2"));
  }
  if (!(options_.min_compression_rate > 0) || !(options_.orthogonalization_epsilon >= 0)) {
    return InvalidArgumentError(
        "PowerSGD needs a positive min_compression_rate and an orthogonalization_epsilon of at "
        "least 0");
  }
  RETURN_IF_ERROR(CheckFloatBuckets("PowerSGD", buckets));
  return CheckSizes(errors_, buckets);
}

std::string PowerSgdHook::DescribeOptions() const {
  return absl::StrCat("rank ", options_.matrix_approximation_rank, ", from step ",
                      options_.start_power_sgd_iter, ", rate ", options_.min_compression_rate,
                      options_.use_error_feedback ? "" : ", without error feedback",
                      options_.warm_start ? "" : ", without warm start", ", epsilon ",
                      options_.orthogonalization_epsilon);
}

std::shared_ptr<Work> PowerSgdHook::Start(Communicator& communicator, const BucketView& bucket) {
  return thread_->Start([this, &communicator, bucket] { return Reduce(communicator, bucket); });
}

Status PowerSgdHook::Reduce(Communicator& communicator, const BucketView& bucket) {
  RETURN_IF_ERROR(AgreeOnIteration(communicator));
  if (iteration_ < options_.start_power_sgd_iter) {
    RETURN_IF_ERROR(ReduceInFull(communicator, bucket));
  } else {
    RETURN_IF_ERROR(Compress(communicator, bucket));
  }
  if (bucket.index + 1 == bucket.bucket_count) ++iteration_;
  return OkStatus();
}

// Otherwise a rank that joined later would still reduce uncompressed.
Status PowerSgdHook::AgreeOnIteration(Communicator& communicator) {
  if (iteration_agreed_) return OkStatus();
  iteration_agreed_ = true;
  if (communicator.size() == 1) return OkStatus();
  return thread_->Broadcast(communicator, {&iteration_, 1, DataType::kInt64}, 0);
}

Status PowerSgdHook::ReduceInFull(Communicator& communicator, const BucketView& bucket) {
  if (bucket.buffer.count == 0 || communicator.size() == 1) return OkStatus();
  reduce::MultiplyInPlace(bucket.buffer, 1.0 / communicator.size());
  return thread_->AllReduce(communicator, bucket.buffer, ReduceOp::kSum);
}

Status PowerSgdHook::Compress(Communicator& communicator, const BucketView& bucket) {
  const DataType type = bucket.buffer.type;
  const float factor = 1.0f / static_cast<float>(communicator.size());
  std::vector<float> values = LoadFloats(bucket.buffer);
  std::vector<Matrix> matrices;
  // The first sum covers the uncompressed gradients, followed by the Ps.
  std::vector<float> first;
  std::vector<GradientView> whole;
  size_t q_count = 0;
  for (const GradientView& gradient : bucket.gradients) {
    const auto shape =
        CompressibleShape(gradient.shape, static_cast<size_t>(options_.matrix_approximation_rank),
                          options_.min_compression_rate);
    float* const at = values.data() + gradient.offset;
    if (!shape) {
      whole.push_back(gradient);
      first.insert(first.end(), at, at + gradient.count);
      continue;
    }
    matrices.push_back({gradient, *shape, at, 0, q_count});
    q_count += shape->q_count();
    if (!options_.use_error_feedback) continue;
    const std::vector<float>& error = Of(errors_, gradient);
    for (size_t k = 0; k < error.size(); ++k) at[k] += error[k];
  }
  ASSIGN_OR_RETURN(std::vector<float> qs, InitialQs(communicator, matrices, q_count));
  for (Matrix& matrix : matrices) {
    matrix.p = first.size();
    first.resize(first.size() + matrix.shape.p_count());
    MultiplyByQ(matrix.shape, matrix.values, qs.data() + matrix.q, first.data() + matrix.p);
  }
  RETURN_IF_ERROR(thread_->SumFloats(communicator, first.data(), first.size(), type));
  for (const Matrix& matrix : matrices) {
    Orthogonalize(first.data() + matrix.p, matrix.shape.rows, matrix.shape.rank,
                  options_.orthogonalization_epsilon);
    MultiplyByP(matrix.shape, matrix.values, first.data() + matrix.p, qs.data() + matrix.q);
  }
  RETURN_IF_ERROR(thread_->SumFloats(communicator, qs.data(), qs.size(), type));
  for (float& value : qs) value *= factor;
  std::vector<float> approximation;
  for (const Matrix& matrix : matrices) {
    const float* const q = qs.data() + matrix.q;
    approximation.resize(matrix.gradient.count);
    Recompose(matrix.shape, first.data() + matrix.p, q, approximation.data());
    if (options_.use_error_feedback) {
      std::vector<float>& error = Of(errors_, matrix.gradient);
      for (size_t k = 0; k < error.size(); ++k) error[k] = matrix.values[k] - approximation[k];
    }
    if (options_.warm_start) {
      qs_[matrix.gradient.parameter].assign(q, q + matrix.shape.q_count());
    }
    ResetNonFinite(approximation, matrix.gradient.parameter, errors_, qs_);
    std::copy(approximation.begin(), approximation.end(), matrix.values);
  }
  const float* at = first.data();
  for (const GradientView& gradient : whole) {
    for (size_t k = 0; k < gradient.count; ++k) values[gradient.offset + k] = *at++ * factor;
  }
  StoreFloats(values, bucket.buffer);
  return OkStatus();
}

// With warm start the last step's Qs; random ones if there are none, or if a Q has become zero.
Result<std::vector<float>> PowerSgdHook::InitialQs(Communicator& communicator,
                                                   Span<const Matrix> matrices, size_t count) {
  std::vector<float> qs(count);
  bool agreed = true;
  for (const Matrix& matrix : matrices) {
    const size_t parameter = matrix.gradient.parameter;
    const Span<float> q(qs.data() + matrix.q, matrix.shape.q_count());
    const auto last = qs_.find(parameter);
    if (options_.warm_start && last != qs_.end() && last->second.size() == q.size()) {
      std::copy(last->second.begin(), last->second.end(), q.begin());
    }
    if (std::all_of(q.begin(), q.end(), [](float value) { return value == 0; })) {
      FillRandom(options_.random_seed, static_cast<uint64_t>(iteration_), parameter, q);
    }
    agreed = !agreed_.insert(parameter).second && agreed;
  }
  // Either all ranks are here for the first time, or some rank has loaded a state.
  if (!agreed && communicator.size() > 1) {
    RETURN_IF_ERROR(
        thread_->Broadcast(communicator, {qs.data(), qs.size(), DataType::kFloat32}, 0));
  }
  for (const Matrix& matrix : matrices) {
    Orthogonalize(qs.data() + matrix.q, matrix.shape.columns, matrix.shape.rank,
                  options_.orthogonalization_epsilon);
  }
  return qs;
}

Result<std::string> PowerSgdHook::SaveState() const {
  HookStateWriter writer(kName);
  writer.Put(static_cast<uint64_t>(iteration_));
  writer.Put(errors_);
  writer.Put(qs_);
  return writer.Take();
}

Status PowerSgdHook::LoadState(std::string_view state) {
  HookStateReader reader(state);
  RETURN_IF_ERROR(reader.Expect(kName));
  ASSIGN_OR_RETURN(const uint64_t iteration, reader.Number());
  ASSIGN_OR_RETURN(FloatsByParameter errors, reader.Floats());
  ASSIGN_OR_RETURN(FloatsByParameter qs, reader.Floats());
  RETURN_IF_ERROR(reader.End());
  iteration_ = static_cast<int64_t>(iteration);
  errors_ = std::move(errors);
  qs_ = std::move(qs);
  iteration_agreed_ = false;
  agreed_.clear();
  return OkStatus();
}

}  // namespace cadre::hooks
