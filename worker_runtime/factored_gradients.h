// Gradients of wide layers, exchanged as what they are products of. The gradient of a linear
// layer's weight is gradient^T * input, with a row in both factors for each sample; with few
// samples the factors are far smaller than the product. So each rank lays its factors into memory
// that all share, and after a meeting computes a slice of the sum of all ranks' products, as one
// product with all their rows, and writes it to every rank: no rank computes, checks or reads a
// whole gradient of its own. After "sufficient factor broadcasting" (Xie et al., UAI 2016; Zhang et
// al., "Poseidon", USENIX ATC 2017).
//
// A gradient that some rank cannot give as factors (it adds to another, it has too many samples,
// the layer was not used) is reduced whole, as all others are. The ranks see what each gave only
// when they meet: then the sum of whole gradients is late, and for the next kWholeSteps steps, and
// as long as some rank could not, all of them treat it as a gradient like any other. All decisions
// follow from what all ranks see, so all decide alike.
#ifndef CADRE_WORKER_RUNTIME_FACTORED_GRADIENTS_H_
#define CADRE_WORKER_RUNTIME_FACTORED_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/progress_snapshot.h"
#include "base/time.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/gradient_buckets.h"
#include "worker_runtime/parameter.h"

namespace cadre {

// result (outputs x inputs, without gaps) = gradient^T * input. Both have `rows` rows, the input
// without gaps, those of the gradient `gradient_stride` elements apart.
struct FactorProduct {
  const float* gradient = nullptr;
  size_t gradient_stride = 0;
  const float* input = nullptr;
  size_t rows = 0;
  size_t outputs = 0;
  size_t inputs = 0;
  float* result = nullptr;
};
// Whose matrix product it is, is the framework's matter.
using MultiplyFactors = std::function<absl::Status(const FactorProduct&)>;

// Told where this rank is from now on: in the backward pass, while it computes what that left out,
// or where it waits for the others, for which bucket.
using EnterPhase = std::function<void(WorkerPhase phase, int bucket)>;

// One rank's factors of one gradient, as rows without gaps.
struct Factors {
  const float* input = nullptr;
  const float* gradient = nullptr;
  size_t rows = 0;
};

// Of a weight of that shape: for how many samples of each rank exchanging factors pays. 0: for
// none. Pure.
size_t MostFactorRows(size_t outputs, size_t inputs, int ranks);

// Steps in which a gradient is reduced whole after one in which that was not known beforehand.
inline constexpr int64_t kWholeSteps = 16;

// One thread at a time, but for Takes(), and for Holds() and IsHeldFinite() of a gradient of which
// nothing is offered or added meanwhile.
class FactoredGradients {
 public:
  // Collective; all ranks give the same parameters. Null: no gradient comes as factors, or the
  // communicator's ranks share no memory.
  static absl::StatusOr<std::unique_ptr<FactoredGradients>> Create(
      Communicator& communicator, absl::Span<const Parameter> parameters, MultiplyFactors multiply,
      EnterPhase enter);

  // Whether gradient i may ever come as factors.
  bool HasRoom(size_t i) const { return layer_of_[i].has_value(); }
  // Whether this step's gradient i is reduced by Exchange().
  bool Takes(size_t i) const { return HasRoom(i) && layers_[*layer_of_[i]].taken; }

  void BeginStep();
  // The factors of gradient i, or of a further part of it. True: they stand for it. False: the
  // gradient is to be computed.
  bool Offer(size_t i, const Factors& factors);
  bool Holds(size_t i) const { return HasRoom(i) && layers_[*layer_of_[i]].rows > 0; }
  // Whether all that is held of gradient i is finite.
  bool IsHeldFinite(size_t i) const;
  // Adds the product of what is held to `whole`, which then stands for gradient i.
  absl::Status AddTo(size_t i, float* whole);

  // Before the meeting: what this rank has. `factor` is what its part is multiplied with, 0 where
  // it has none.
  void Publish(int64_t step, double factor);

  struct Exchanged {
    // By rank, where a product is not finite although its factors are. Empty: all are.
    std::vector<std::optional<size_t>> not_finite;
    // How much less this rank gave than the gradients would have been.
    size_t bytes_saved = 0;
  };
  // After the meeting, on all ranks: all gradients that this step takes are the sum over the ranks,
  // in `buckets`, and the next step's are chosen. Errors as the communicator's, and INTERNAL: the
  // product failed.
  absl::StatusOr<Exchanged> Exchange(int64_t step, const GradientBuckets& buckets,
                                     bool check_finite, MonoTime deadline);

 private:
  // What a rank has of one gradient.
  enum class Part : uint32_t { kNothing, kFactors, kWhole };
  struct Note {
    Part part;
    uint32_t rows;
    double factor;
  };
  struct Layer {
    size_t parameter = 0;
    size_t inputs = 0;
    size_t outputs = 0;
    size_t most_rows = 0;
    // Into the board.
    size_t input_offset = 0;
    size_t gradient_offset = 0;
    // In this step: rows that were offered, and of them those that are held; whether they are all
    // there is.
    size_t offered = 0;
    size_t rows = 0;
    bool complete = true;
    // Agreed: whether this step takes it; before which step none does again.
    bool taken = false;
    int64_t not_before = 0;
  };

  FactoredGradients(Communicator& communicator, MultiplyFactors multiply, EnterPhase enter);

  Layer& Of(size_t i) { return layers_[*layer_of_[i]]; }
  const Layer& Of(size_t i) const { return layers_[*layer_of_[i]]; }
  Note& NoteOf(int rank, size_t layer, int64_t step) const;
  float* InputOf(int rank, const Layer& layer) const;
  float* GradientOf(int rank, const Layer& layer) const;

  // What the ranks have together.
  Part Together(size_t layer, int64_t step) const;
  // Blocks of the product, in order: body(first row, rows, block).
  template <typename Body>
  absl::Status ForBlocks(FactorProduct product, const Body& body);
  // Of what this rank holds.
  FactorProduct Own(const Layer& layer) const;
  absl::Status AddOwn(const Layer& layer, float* whole);
  absl::StatusOr<bool> IsOwnFinite(const Layer& layer);

  // False: not finite.
  absl::StatusOr<bool> SumProducts(size_t layer, int64_t step, const Buffer& place);
  absl::StatusOr<bool> SumWholes(size_t layer, int64_t step, const GradientBuckets& buckets,
                                 bool check, MonoTime deadline);
  absl::StatusOr<std::vector<std::optional<size_t>>> WhoseIsNotFinite(
      size_t layer, const GradientBuckets& buckets, MonoTime deadline);
  // For the bucket of the layer's gradient.
  absl::Status WaitFor(const std::shared_ptr<Work>& work, size_t layer,
                       const GradientBuckets& buckets, MonoTime deadline);

  Communicator& communicator_;
  const MultiplyFactors multiply_;
  const EnterPhase enter_;
  std::vector<std::optional<size_t>> layer_of_;
  std::vector<Layer> layers_;
  // Notes of two steps, so that nobody writes what another still reads; then factors.
  std::shared_ptr<void> board_;
  std::vector<char*> boards_;
  // All ranks' rows of one layer's input and of this rank's slice of the gradient; a block.
  std::vector<float> input_;
  std::vector<float> gradient_;
  std::vector<float> block_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_FACTORED_GRADIENTS_H_
