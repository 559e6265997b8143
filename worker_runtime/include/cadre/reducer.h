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
// Gradients are stored in buckets. A bucket is reduced as soon as all of its gradients are ready
// and the buckets before it have been started, so that all ranks start them in the same order,
// whatever the order of their backward passes. The first step uses the reverse order of
// registration; after it the buckets are laid out once more, in the order in which rank 0's
// gradients became ready.
//
// A rank's gradients are weighted: with BeginStep(true, weight) every gradient becomes sum(weight *
// gradient) / sum(weight). A rank without data takes part with weight 0. A gradient that is not
// ready at the end counts as its bucket's current content; if no rank had it, it is unchanged. The
// weights and the checks below are sent behind the last bucket's gradients and need no collective
// of their own, except with a hook. A hook gets gradients multiplied by their rank's weight
// relative to usual_weight(), which is about 1, so that clipping and 16 bits mean the same as
// without weights.
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

// The outcome of a step in which some rank's gradient is NaN or infinite. A hook's output is
// checked, too, with one pass over it, since a hook may exchange numbers of a smaller range than
// float32. Not checked again are averages without a hook, which are computed in the gradients' own
// type, and the output of a hook that lets replicas differ.
enum class NonFinite {
  // Finish() fails on all ranks, naming the rank, the parameter and the step; it names no rank if
  // all gradients were finite and only the hook's output is not.
  kError,
  // Finish() succeeds on all ranks with report.skipped set: no optimizer may step.
  kSkip,
  // Gradients are not checked.
  kIgnore,
};

struct ReducerOptions {
  // The first bucket is small so that communication starts early.
  size_t first_bucket_bytes = size_t{1} << 20;
  size_t bucket_bytes = size_t{25} << 20;
  // The first step counts how often each gradient becomes ready (a parameter may be used several
  // times), and all later steps must match it; otherwise each gradient becomes ready once.
  bool static_graph = false;
  NonFinite non_finite = NonFinite::kError;
  // The ranks compare a hash of their parameters every this many steps; 0: never. Not done with a
  // hook that lets replicas differ.
  int64_t fingerprint_every = 100;
  // Rank 0's parameters are copied to all ranks at construction.
  bool broadcast_parameters = true;
  // Replaces the all-reduce of each bucket, and the division before it. Not shared with another
  // reducer.
  std::shared_ptr<CommunicationHook> hook;
  // Where to write this rank's progress; errors about ranks that did not arrive then say how far
  // those are. Null: the worker's own page, ProgressPage::OfThisWorker(), which its agent reads.
  std::shared_ptr<progress::ProgressPage> page;
  // Limits the collectives of Create() and BeginStep(). Longer than the communicator's own timeout,
  // whose error names the missing rank.
  std::chrono::nanoseconds timeout = std::chrono::minutes(11);
};

struct StepReport {
  // Counts synchronized steps from 1.
  int64_t step = 0;
  // False after BeginStep(false): nothing was exchanged.
  bool synchronized = false;
  // Whether gradients must not be used; the same on all ranks.
  bool skipped = false;
  // If skipped: whose gradients are not finite, or that they are not after the hook.
  std::string reason;
  // The sum over all ranks; 0: no rank had data, and no gradient changed.
  double weight = 0;
  size_t buckets = 0;
  // Bytes that this rank passed to collectives: the gradients, as the hook sends them, and its
  // summary of the step.
  size_t bytes = 0;
  // How long the all-reduces took, and how long Finish() waited for them; the difference was hidden
  // behind the backward pass.
  std::chrono::nanoseconds communication{};
  std::chrono::nanoseconds exposed_wait{};
  // Whether any rank had a gradient for the parameter.
  std::vector<bool> used;
};

// MarkReady() may be called from any thread between BeginStep() and Finish(); everything else from
// one thread at a time. All ranks must make the same calls, so that their collectives match. After
// an error every later call returns that error. Unless all ranks got the error together, the
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
  // The members of each bucket, as indices into parameters(), in the order of reduction.
  virtual const std::vector<std::vector<size_t>>& buckets() const = 0;
  // The number of synchronized steps so far.
  virtual int64_t finished_steps() const = 0;

  // The memory of gradient i, initially zero. It moves, with its content, when layout() changes,
  // which only BeginStep() does.
  virtual Buffer Gradient(size_t i) const = 0;
  virtual uint64_t layout() const = 0;
  // Keeps the memory of Gradient(i) alive, for frameworks that share ownership.
  virtual std::shared_ptr<void> Storage(size_t i) const = 0;

  // Starts a step. With synchronize == false gradients only accumulate locally: MarkReady() does
  // nothing and Finish() exchanges nothing. It may be called again before the first MarkReady().
  // INVALID_ARGUMENT: the weight is negative or not finite.
  virtual Status BeginStep(bool synchronize = true, double weight = 1) = 0;

  // Reports that gradient i is complete, in Gradient(i) or at `gradient`, from which it is copied.
  // Does not wait for other ranks. FAILED_PRECONDITION: no step was begun, or i has already been
  // marked in this step.
  Status MarkReady(size_t i) { return MarkReady(i, Gradient(i).data); }
  virtual Status MarkReady(size_t i, const void* gradient) = 0;
  virtual bool IsMarked(size_t i) const = 0;
  // Reports that gradient i exists on a device; MarkReady() follows later. The earlier of the two
  // calls determines the order of gradients in buckets from the second step on.
  virtual void NoteReady(size_t i) = 0;
  // Reports that gradient i, which is reduced elsewhere (Parameter::reduced_elsewhere), was not
  // finite on this rank: in this step, or in an earlier one whose result arrived late.
  virtual void MarkNotFinite(size_t i) = 0;

  // Waits until all gradients hold the average.
  //   DEADLINE_EXCEEDED    names the bucket that some rank did not reduce
  //   INVALID_ARGUMENT     the ranks reduced different buckets, or are in different steps
  //   OUT_OF_RANGE         a gradient is not finite (names rank, parameter, step), or is not finite
  //                        after the hook (parameter, step)
  //   DATA_LOSS            the ranks' parameters have diverged (parameter, ranks, step)
  //   FAILED_PRECONDITION  with static_graph: names the gradients that differ from the first step
  virtual Result<StepReport> Finish(std::chrono::nanoseconds timeout) = 0;

  // For callers that reduce gradients elsewhere and multiply them by weights before sending them:
  // the number by which to divide the weights of the current step, so that the products keep the
  // gradients' order of magnitude. The same on all ranks: the mean weight of the previous step. In
  // the first step it is the mean weight of this step, if there is a hook or if float16 gradients
  // are reduced elsewhere; otherwise 1.
  virtual double usual_weight() const = 0;

 protected:
  Reducer() = default;
};

}  // namespace cadre

#endif  // CADRE_REDUCER_H_
