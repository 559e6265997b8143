#include "worker_runtime/factored_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/gradient_scan.h"
#include "worker_runtime/wait_or_abort.h"

namespace cadre {
namespace {

// A smaller gradient stays in the cache on its way, and more rows than this use what is there often
// enough.
constexpr size_t kLargeBytes = size_t{4} << 20;
constexpr size_t kFewRows = 64;
// How much smaller than the gradient all factors together are to be.
constexpr size_t kSaving = 4;
// Of a product: what is still in the cache when it is copied.
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kCacheLine = 64;

size_t Aligned(size_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

struct Range {
  size_t begin = 0;
  size_t end = 0;
};

Range SliceOf(int rank, int ranks, size_t count) {
  const size_t each = (count + ranks - 1) / ranks;
  return {std::min(count, each * rank), std::min(count, each * (rank + 1))};
}

absl::Duration Until(MonoTime deadline) {
  return std::max(deadline - MonoNow(), absl::ZeroDuration());
}

bool AreFinite(const float* values, size_t count) {
  return IsFinite({const_cast<float*>(values), count, DataType::kFloat32});
}

}  // namespace

size_t MostFactorRows(size_t outputs, size_t inputs, int ranks) {
  if (ranks < 2 || outputs * inputs * sizeof(float) < kLargeBytes) return 0;
  return std::min(kFewRows, outputs * inputs / (outputs + inputs) / (kSaving * ranks));
}

absl::StatusOr<std::unique_ptr<FactoredGradients>> FactoredGradients::Create(
    Communicator& communicator, absl::Span<const Parameter> parameters, MultiplyFactors multiply,
    EnterPhase enter) {
  std::unique_ptr<FactoredGradients> result(
      new FactoredGradients(communicator, std::move(multiply), std::move(enter)));
  const int ranks = communicator.size();
  result->layer_of_.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].by_factors) continue;
    Layer layer;
    layer.parameter = i;
    layer.outputs = static_cast<size_t>(parameters[i].shape[0]);
    layer.inputs = static_cast<size_t>(parameters[i].shape[1]);
    layer.most_rows = MostFactorRows(layer.outputs, layer.inputs, ranks);
    if (layer.most_rows == 0) continue;
    result->layer_of_[i] = result->layers_.size();
    result->layers_.push_back(layer);
  }
  if (result->layers_.empty()) return nullptr;
  size_t bytes = Aligned(2 * result->layers_.size() * sizeof(Note));
  for (Layer& layer : result->layers_) {
    layer.input_offset = bytes;
    bytes += Aligned(layer.most_rows * layer.inputs * sizeof(float));
    layer.gradient_offset = bytes;
    bytes += Aligned(layer.most_rows * layer.outputs * sizeof(float));
  }
  ASSIGN_OR_RETURN(result->board_, communicator.AllocateBuffer(bytes));
  for (void* board : communicator.SharedPlaces(result->board_.get(), bytes)) {
    result->boards_.push_back(static_cast<char*>(board));
  }
  if (result->boards_.empty()) return nullptr;
  return result;
}

FactoredGradients::FactoredGradients(Communicator& communicator, MultiplyFactors multiply,
                                     EnterPhase enter)
    : communicator_(communicator), multiply_(std::move(multiply)), enter_(std::move(enter)) {}

FactoredGradients::Note& FactoredGradients::NoteOf(int rank, size_t layer, int64_t step) const {
  return reinterpret_cast<Note*>(boards_[rank])[layers_.size() * (step % 2) + layer];
}

float* FactoredGradients::InputOf(int rank, const Layer& layer) const {
  return reinterpret_cast<float*>(boards_[rank] + layer.input_offset);
}

float* FactoredGradients::GradientOf(int rank, const Layer& layer) const {
  return reinterpret_cast<float*>(boards_[rank] + layer.gradient_offset);
}

void FactoredGradients::BeginStep() {
  for (Layer& layer : layers_) {
    layer.offered = layer.rows = 0;
    layer.complete = true;
  }
}

bool FactoredGradients::Offer(size_t i, const Factors& factors) {
  if (!HasRoom(i)) return false;
  Layer& layer = Of(i);
  layer.offered += factors.rows;
  layer.complete = layer.complete && layer.offered <= layer.most_rows;
  if (!layer.taken || !layer.complete || factors.rows == 0) return false;
  const int rank = communicator_.rank();
  std::memcpy(InputOf(rank, layer) + layer.rows * layer.inputs, factors.input,
              factors.rows * layer.inputs * sizeof(float));
  std::memcpy(GradientOf(rank, layer) + layer.rows * layer.outputs, factors.gradient,
              factors.rows * layer.outputs * sizeof(float));
  layer.rows += factors.rows;
  return true;
}

bool FactoredGradients::IsHeldFinite(size_t i) const {
  const Layer& layer = Of(i);
  const int rank = communicator_.rank();
  return AreFinite(InputOf(rank, layer), layer.rows * layer.inputs) &&
         AreFinite(GradientOf(rank, layer), layer.rows * layer.outputs);
}

FactorProduct FactoredGradients::Own(const Layer& layer) const {
  const int rank = communicator_.rank();
  FactorProduct product;
  product.gradient = GradientOf(rank, layer);
  product.gradient_stride = layer.outputs;
  product.input = InputOf(rank, layer);
  product.rows = layer.rows;
  product.outputs = layer.outputs;
  product.inputs = layer.inputs;
  return product;
}

template <typename Body>
absl::Status FactoredGradients::ForBlocks(FactorProduct product, const Body& body) {
  const size_t rows_at_once = std::max<size_t>(1, kBlockBytes / sizeof(float) / product.inputs);
  block_.resize(std::max(block_.size(), rows_at_once * product.inputs));
  product.result = block_.data();
  const float* const gradient = product.gradient;
  const size_t outputs = product.outputs;
  for (size_t first = 0; first < outputs; first += rows_at_once) {
    product.gradient = gradient + first;
    product.outputs = std::min(rows_at_once, outputs - first);
    RETURN_IF_ERROR(multiply_(product));
    body(first, product.outputs * product.inputs);
  }
  return absl::OkStatus();
}

absl::Status FactoredGradients::AddOwn(const Layer& layer, float* whole) {
  return ForBlocks(Own(layer), [&](size_t first, size_t count) {
    float* const to = whole + first * layer.inputs;
    for (size_t k = 0; k < count; ++k) to[k] += block_[k];
  });
}

absl::Status FactoredGradients::AddTo(size_t i, float* whole) {
  RETURN_IF_ERROR(AddOwn(Of(i), whole));
  Of(i).rows = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> FactoredGradients::IsOwnFinite(const Layer& layer) {
  bool finite = true;
  RETURN_IF_ERROR(ForBlocks(Own(layer), [&](size_t, size_t count) {
    finite = AreFinite(block_.data(), count) && finite;
  }));
  return finite;
}

void FactoredGradients::Publish(int64_t step, double factor) {
  for (size_t k = 0; k < layers_.size(); ++k) {
    const Layer& layer = layers_[k];
    const bool by_factors = layer.taken ? layer.rows > 0 : layer.offered > 0 && layer.complete;
    Note& note = NoteOf(communicator_.rank(), k, step);
    note.part = factor == 0 ? Part::kNothing : by_factors ? Part::kFactors : Part::kWhole;
    note.rows = note.part == Part::kFactors ? static_cast<uint32_t>(layer.rows) : 0;
    note.factor = factor;
  }
}

FactoredGradients::Part FactoredGradients::Together(size_t layer, int64_t step) const {
  Part together = Part::kNothing;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    together = std::max(together, NoteOf(rank, layer, step).part);
  }
  return together;
}

absl::StatusOr<bool> FactoredGradients::SumProducts(size_t index, int64_t step,
                                                    const Buffer& place) {
  const Layer& layer = layers_[index];
  const int ranks = communicator_.size();
  const Range slice = SliceOf(communicator_.rank(), ranks, layer.outputs);
  const size_t width = slice.end - slice.begin;
  size_t rows = 0;
  for (int rank = 0; rank < ranks; ++rank) rows += NoteOf(rank, index, step).rows;
  input_.resize(std::max(input_.size(), rows * layer.inputs));
  gradient_.resize(std::max(gradient_.size(), rows * width));
  float* input = input_.data();
  float* gradient = gradient_.data();
  for (int rank = 0; rank < ranks; ++rank) {
    const Note& note = NoteOf(rank, index, step);
    std::memcpy(input, InputOf(rank, layer), note.rows * layer.inputs * sizeof(float));
    input += note.rows * layer.inputs;
    const auto factor = static_cast<float>(note.factor);
    for (size_t row = 0; row < note.rows; ++row, gradient += width) {
      const float* const from = GradientOf(rank, layer) + row * layer.outputs + slice.begin;
      for (size_t k = 0; k < width; ++k) gradient[k] = from[k] * factor;
    }
  }
  std::vector<float*> targets;
  for (void* target : communicator_.SharedPlaces(place.data, place.count * sizeof(float))) {
    targets.push_back(static_cast<float*>(target) + slice.begin * layer.inputs);
  }
  FactorProduct product;
  product.gradient = gradient_.data();
  product.gradient_stride = product.outputs = width;
  product.input = input_.data();
  product.rows = rows;
  product.inputs = layer.inputs;
  bool finite = true;
  RETURN_IF_ERROR(ForBlocks(product, [&](size_t, size_t count) {
    finite = SpreadAndCheckFinite(absl::MakeConstSpan(targets), block_.data(), count) && finite;
    for (float*& target : targets) target += count;
  }));
  return finite;
}

absl::Status FactoredGradients::WaitFor(const std::shared_ptr<Work>& work, size_t layer,
                                        const GradientBuckets& buckets, MonoTime deadline) {
  enter_(WorkerPhase::kWaiting, static_cast<int>(buckets.BucketOf(layers_[layer].parameter)));
  return WaitOrAbort(communicator_, work, Until(deadline));
}

absl::StatusOr<bool> FactoredGradients::SumWholes(size_t index, int64_t step,
                                                  const GradientBuckets& buckets, bool check,
                                                  MonoTime deadline) {
  const Layer& layer = layers_[index];
  const Buffer& place = buckets.Gradient(layer.parameter);
  const Note& note = NoteOf(communicator_.rank(), index, step);
  bool finite = true;
  if (note.part != Part::kWhole) std::memset(place.data, 0, place.count * sizeof(float));
  if (note.part == Part::kFactors) {
    RETURN_IF_ERROR(AddOwn(layer, static_cast<float*>(place.data)));
    finite = !check || IsFinite(place);
  }
  const double factor = note.part == Part::kNothing ? 1 : note.factor;
  RETURN_IF_ERROR(WaitFor(communicator_.AllReduce(place, Reduction(ReduceOp::kSum, factor)), index,
                          buckets, deadline));
  return finite;
}

absl::StatusOr<std::vector<std::optional<size_t>>> FactoredGradients::WhoseIsNotFinite(
    size_t index, const GradientBuckets& buckets, MonoTime deadline) {
  const Layer& layer = layers_[index];
  enter_(WorkerPhase::kBackward, -1);
  ASSIGN_OR_RETURN(const bool finite, IsOwnFinite(layer));
  const int ranks = communicator_.size();
  int32_t mine = finite ? 0 : 1;
  std::vector<int32_t> all(ranks);
  RETURN_IF_ERROR(WaitFor(communicator_.AllGather({&mine, 1, DataType::kInt32},
                                                  {all.data(), all.size(), DataType::kInt32}),
                          index, buckets, deadline));
  // Where each rank's product is finite and only their sum is not, it is all of theirs.
  const bool any = std::any_of(all.begin(), all.end(), [](int32_t one) { return one != 0; });
  std::vector<std::optional<size_t>> result(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    if (!any || all[rank] != 0) result[rank] = layer.parameter;
  }
  return result;
}

absl::StatusOr<FactoredGradients::Exchanged> FactoredGradients::Exchange(
    int64_t step, const GradientBuckets& buckets, bool check_finite, MonoTime deadline) {
  Exchanged result;
  std::optional<size_t> last_taken;
  // 1 + the layer.
  int32_t not_finite = 0;
  for (size_t k = 0; k < layers_.size(); ++k) {
    Layer& layer = layers_[k];
    const Part together = Together(k, step);
    const Buffer& place = buckets.Gradient(layer.parameter);
    bool finite = true;
    if (layer.taken) {
      last_taken = k;
      enter_(WorkerPhase::kBackward, -1);
    }
    if (layer.taken && together == Part::kWhole) {
      ASSIGN_OR_RETURN(finite, SumWholes(k, step, buckets, check_finite, deadline));
      layer.not_before = step + 1 + kWholeSteps;
    } else if (layer.taken) {
      if (together == Part::kFactors) {
        ASSIGN_OR_RETURN(finite, SumProducts(k, step, place));
      }
      result.bytes_saved +=
          (place.count - layer.rows * (layer.inputs + layer.outputs)) * sizeof(float);
    }
    if (!finite && check_finite) not_finite = static_cast<int32_t>(k) + 1;
    if (together == Part::kNothing) continue;
    layer.taken = together == Part::kFactors && step + 1 >= layer.not_before;
  }
  if (!last_taken) return result;
  // Also the meeting before which nobody may use its gradients, nor lay out other factors.
  RETURN_IF_ERROR(
      WaitFor(communicator_.AllReduce({&not_finite, 1, DataType::kInt32}, ReduceOp::kMax),
              *last_taken, buckets, deadline));
  if (not_finite == 0) return result;
  ASSIGN_OR_RETURN(result.not_finite, WhoseIsNotFinite(not_finite - 1, buckets, deadline));
  return result;
}

}  // namespace cadre
