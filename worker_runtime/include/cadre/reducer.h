// Averages gradients over the ranks while the backward pass is still running.
//
//   CADRE_ASSIGN_OR_RETURN(auto reducer, Reducer::Create(communicator, parameters, {}));
//   for (...) {
//     CADRE_RETURN_IF_ERROR(reducer->BeginStep());
//     // backward: writes gradient i to reducer->Gradient(i), then, from any thread,
//     //           reducer->MarkReady(i);
//     CADRE_ASSIGN_OR_RETURN(StepReport report, reducer->Finish(std::chrono::minutes(1)));
//     // Gradient(i) now holds the average.
//   }
//
// Gradients live in buckets; a bucket is reduced as soon as all of its gradients are ready and the
// buckets before it have been started, so that all ranks start them in the same order whatever the
// order of their backward passes. The first step uses the reverse of the order of registration;
// after it the buckets are laid out once more, in the order in which rank 0's gradients became
// ready.
//
// A rank's part counts by its weight: with BeginStep(true, weight) every gradient becomes
// sum(weight * gradient) / sum(weight). A rank without data takes part with weight 0. A gradient
// that is not ready at the end counts as what its place holds; where no rank had it, it stays as it
// was. All of that, and the checks below, travel behind the last bucket's gradients: they cost no
// collective of their own, except with a hook. A hook gets gradients that are multiplied by their
// rank's weight in relation to the usual one, which is about 1: clipping and 16 bits mean what they
// mean without weights.
#ifndef CADRE_REDUCER_H_
#define CADRE_REDUCER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre {

namespace progress {
class ProgressPage;
}  // namespace progress

// The outcome of a step in which some rank's gradient is NaN or infinite. What comes out of a hook
// is looked at, too, since it may exchange less than a float holds: one pass over the result. Not
// looked at again are averages without a hook, which are made in the gradients' own type, and what
// comes out of a hook that lets replicas differ.
enum class NonFinite {
  // Finish() fails on all ranks, naming the rank, the parameter and the step. Where it is the hook
  // that made it so, no rank: the gradients of all were finite.
  kError,
  // It succeeds on all ranks with report.skipped set: no optimizer may step.
  kSkip,
  // Nobody looks.
  kIgnore,
};

struct ReducerOptions {
  // The first bucket is small so that communication starts early.
  size_t first_bucket_bytes = size_t{1} << 20;
  size_t bucket_bytes = size_t{25} << 20;
  // The first step counts how often each gradient becomes ready (a parameter may be used several
  // times) and all later steps must be the same; otherwise a gradient becomes ready once.
  bool static_graph = false;
  NonFinite non_finite = NonFinite::kError;
  // Every so many steps the ranks compare a hash of their parameters; 0: never. Not with a hook
  // that lets replicas differ.
  int64_t fingerprint_every = 100;
  // Rank 0's parameters are copied to all ranks at construction.
  bool broadcast_parameters = true;
  // Replaces the all-reduce of each bucket, and the division before it. The reducer's own.
  std::shared_ptr<CommunicationHook> hook;
  // Where to write how far this rank is; errors about ranks that did not come then say where they
  // are. Null: the worker's own, ProgressPage::OfThisWorker(), which its agent reads.
  std::shared_ptr<progress::ProgressPage> page;
  // For the collectives of Create() and BeginStep(). Longer than the communicator's own timeout,
  // whose error names the rank that did not come.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
};

struct StepReport {
  // Counts synchronized steps from 1.
  int64_t step = 0;
  // False after BeginStep(false): nothing was exchanged.
  bool synchronized = false;
  // Gradients must not be used. On all ranks alike.
  bool skipped = false;
  // With skipped: whose gradients are not finite, or that they are not after the hook.
  std::string reason;
  // Of all ranks together; 0: no rank had data, and no gradient changed.
  double weight = 0;
  size_t buckets = 0;
  // Given by this rank to collectives: the gradients, as they travel with the hook, and its summary
  // of the step.
  size_t bytes = 0;
  // How long the all-reduces themselves took, and how long Finish() waited for them: the rest was
  // hidden behind the backward pass.
  std::chrono::nanoseconds communication{};
  std::chrono::nanoseconds exposed_wait{};
  // Whether any rank had a gradient for the parameter.
  std::vector<bool> used;
};

// MarkReady() may be called from any thread between BeginStep() and Finish(); everything else from
// one thread at a time. Collectives are the same on all ranks as long as all make the same calls.
// After an error every later call returns that error; unless all ranks got it together, the
// communicator is aborted, so that no rank waits for one that gave up.
class Reducer {
 public:
  // Collective. `communicator` and the memory of the parameters must outlive the reducer.
  // INVALID_ARGUMENT: the ranks disagree about the parameters (see CheckSameParameters), a type is
  // not float32 or float64, or a name appears twice.
  static Result<std::unique_ptr<Reducer>> Create(Communicator& communicator,
                                                 std::vector<Parameter> parameters,
                                                 ReducerOptions options);
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  size_t size() const { return parameters().size(); }
  virtual const std::vector<Parameter>& parameters() const = 0;
  // Members of each bucket, as indices into parameters(), in the order of their reduction.
  virtual const std::vector<std::vector<size_t>>& buckets() const = 0;
  // Steps that were synchronized so far.
  virtual int64_t finished_steps() const = 0;

  // Where gradient i lives, initially zero. Moves, with its content, when layout() changes, which
  // only BeginStep() does.
  virtual Buffer Gradient(size_t i) const = 0;
  virtual uint64_t layout() const = 0;
  // Keeps the memory of Gradient(i) alive, for frameworks that share ownership.
  virtual std::shared_ptr<void> Storage(size_t i) const = 0;

  // Starts a step. With synchronize == false gradients only accumulate locally: MarkReady() does
  // nothing and Finish() exchanges nothing. Calling it again before the first MarkReady() is
  // allowed. INVALID_ARGUMENT: the weight is negative or not finite.
  virtual Status BeginStep(bool synchronize = true, double weight = 1) = 0;

  // Gradient i is complete, in its place, or at `gradient` from where it is copied. Does not wait
  // for other ranks.
  // FAILED_PRECONDITION: no step was begun, or i has been marked in this step already.
  Status MarkReady(size_t i) { return MarkReady(i, Gradient(i).data); }
  virtual Status MarkReady(size_t i, const void* gradient) = 0;
  virtual bool IsMarked(size_t i) const = 0;
  // Gradient i is there, on a device, and MarkReady() comes later. Of both the first counts for the
  // order in which gradients lie in buckets from the second step on.
  virtual void NoteReady(size_t i) = 0;
  // Gradient i, which is reduced elsewhere (Parameter::reduced_elsewhere), was found not to be
  // finite on this rank: in this step, or in one before it whose result came late.
  virtual void MarkNotFinite(size_t i) = 0;

  // Waits until all gradients hold the average.
  //   DEADLINE_EXCEEDED    names the bucket that some rank did not reduce
  //   INVALID_ARGUMENT     the ranks reduced different things, or are in different steps
  //   OUT_OF_RANGE         a gradient is not finite: rank, parameter, step; or is not after the
  //                        hook: parameter, step
  //   DATA_LOSS            the ranks' parameters have become different: parameter, ranks, step
  //   FAILED_PRECONDITION  with static_graph: names the gradients that are not as in the first step
  virtual Result<StepReport> Finish(std::chrono::nanoseconds timeout) = 0;

  // For whoever reduces gradients elsewhere and multiplies them by weights before they are sent: of
  // the step that BeginStep() began, what to divide weights by, so that the products are of the
  // gradients' own order. The same on all ranks: the mean weight of the step before. In the first
  // step that of this one with a hook, and where gradients of float16 are reduced elsewhere;
  // else 1.
  virtual double usual_weight() const = 0;

 protected:
  Reducer() = default;
};

}  // namespace cadre

#endif  // CADRE_REDUCER_H_
