// Gradients that a Reducer cannot hold in place, because they are on a device or have 16 bits: they
// are in buckets beside their parameters, and each bucket has a route by which it is combined over
// all ranks, or sent to its owner: on its device if the ranks' devices have a communicator, or
// through host memory.
#ifndef CADRE_WORKER_RUNTIME_TORCH_DEVICE_GRADIENTS_H_
#define CADRE_WORKER_RUNTIME_TORCH_DEVICE_GRADIENTS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "c10/core/Stream.h"
#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/reducer.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "torch/types.h"
#include "worker_runtime/torch/device_links.h"

namespace cadre::nn {

// One gradient's place in the flat tensor, in elements.
struct RouteMember {
  size_t parameter = 0;
  int64_t offset = 0;
  int64_t count = 0;
};

// How gradients that are sent together are combined. Each step calls Send(), Hand() and Fetch(), in
// this order, one at a time; Hand() on another thread. Throws what libtorch throws.
class GradientRoute {
 public:
  virtual ~GradientRoute() = default;
  GradientRoute(const GradientRoute&) = delete;
  GradientRoute& operator=(const GradientRoute&) = delete;

  const std::vector<RouteMember>& members() const { return members_; }
  DeviceStream& stream() const { return *stream_; }
  // The gradients, one after the other, initially zero. If gradients go to an owner, it is
  // undefined between steps and for internal use only.
  const torch::Tensor& flat() const { return flat_; }
  // Bytes passed to the devices' collectives in a step.
  virtual size_t bytes_on_devices() const { return 0; }

  // Makes later sends wait for all work submitted to `written` so far.
  virtual void WaitFor(c10::Stream written) { stream_->WaitFor(written); }
  // Starts sending, after the streams given to WaitFor(). `marks`: how often each member became
  // ready; a member that did not counts as its place's current content. `weight` is this rank's,
  // divided by the reducer's usual_weight().
  virtual void Send(const std::vector<int>& marks, double weight) = 0;
  // Marks the members ready in the reducer. CANCELLED if `cancelled` returns true.
  virtual Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) = 0;
  // Call after the reducer's Finish(): queues on the stream what brings the result into the flat
  // tensor.
  virtual void Fetch(const StepReport& report) = 0;
  // The status of the collectives so far.
  virtual Status CheckHealth() { return OkStatus(); }

 protected:
  GradientRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members)
      : reducer_(*reducer), stream_(stream), members_(std::move(members)) {}

  // The parameter whose gradient has that element of the flat tensor.
  size_t ParameterAt(int64_t element) const;
  // Multiplies flat() by the weight of this rank's step, as passed to Send().
  void Weigh(double weight);
  // The factor that turns the sum of the ranks' gradients, weighted and divided by the number of
  // ranks, into the average.
  double RestOfAverage(const StepReport& report, int ranks) const;
  // Tells the reducer how often each member became ready; the members' parameters are
  // reduced_elsewhere.
  Status MarkReady(const std::vector<int>& marks);
  // The number of elements of all members.
  int64_t count() const { return members_.back().offset + members_.back().count; }
  // Waits until the device has reached `point`.
  static Status Await(const DevicePoint& point, const std::function<bool()>& cancelled);

  Reducer& reducer_;
  DeviceStream* const stream_;
  const std::vector<RouteMember> members_;
  torch::Tensor flat_;
};

// Sends through pinned memory into the reducer's buckets, and back. `like` has the members' type
// and device.
std::unique_ptr<GradientRoute> MakeHostRoute(Reducer* reducer, DeviceStream* stream,
                                             std::vector<RouteMember> members,
                                             const torch::Tensor& like);

// Collective if there is a communicator: averages the ranks' device memory by `communicator`, whose
// operations run on `stream`. Null: there is only one rank. The parameters are reduced_elsewhere.
// With NonFinite::kError a non-finite gradient is reported in the following step, so that nothing
// waits for the device; with kSkip Hand() waits. The check runs on `checks`, while earlier
// gradients are being sent; if they are sent in another type, it checks what is sent.
//   RESOURCE_EXHAUSTED  some rank's device has no memory
struct DeviceRouteOptions {
  Communicator* communicator = nullptr;
  DeviceStream* checks = nullptr;
  NonFinite non_finite = NonFinite::kError;
  PlainAverage average;
};
Result<std::unique_ptr<GradientRoute>> MakeDeviceRoute(Reducer* reducer, DeviceStream* stream,
                                                       std::vector<RouteMember> members,
                                                       const torch::Tensor& like,
                                                       const DeviceRouteOptions& options);

// For gradients that only one rank needs, which are not in buckets but where autograd put them:
// `parameters` are the members' tensors. Send() packs and removes their gradients; after Fetch()
// the owner has the average of those that some rank used, and the others have none. `device` is the
// devices' communicator, in whose order Send() starts; null: Hand() reduces by `host`, in the order
// of its calls. The parameters are reduced_elsewhere. Non-finite gradients are reported as above,
// but by the host in the same step.
struct OwnerRouteOptions {
  int owner = 0;
  Communicator* host = nullptr;
  Communicator* device = nullptr;
  DeviceStream* checks = nullptr;
  NonFinite non_finite = NonFinite::kError;
};
std::unique_ptr<GradientRoute> MakeOwnerRoute(Reducer* reducer, DeviceStream* stream,
                                              std::vector<RouteMember> members,
                                              std::vector<torch::Tensor> parameters,
                                              const OwnerRouteOptions& options);

// All gradients that a Reducer cannot hold in place. A bucket is sent as soon as its gradients are
// ready, on a separate stream while the backward pass continues, by its route; a thread informs the
// reducer.
//
// MarkReady() may be called by any thread between BeginStep() and SendRest(); everything else by
// one thread at a time. Throws what libtorch throws.
class RoutedGradients {
 public:
  // `tensors` are those of the reducer's parameters; the parameters whose device the links reduce
  // must be reduced_elsewhere. The reducer must outlive this. Collective if there are links, as is
  // LayOut(); RESOURCE_EXHAUSTED: some rank's device has no memory. With `owners`, one rank per
  // parameter, every gradient, also on the host, goes to its owner only and has no bucket; all are
  // reduced_elsewhere, and `host` reduces those whose devices have no communicator.
  static Result<std::unique_ptr<RoutedGradients>> Create(Reducer& reducer,
                                                         const std::vector<torch::Tensor>& tensors,
                                                         std::unique_ptr<DeviceLinks> links,
                                                         const ReducerOptions& options,
                                                         std::vector<int> owners = {},
                                                         Communicator* host = nullptr);
  ~RoutedGradients();
  RoutedGradients(const RoutedGradients&) = delete;
  RoutedGradients& operator=(const RoutedGradients&) = delete;

  bool empty() const { return pieces_.empty(); }
  // Bytes that this rank's devices pass to collectives in a step.
  size_t bytes_on_devices() const;
  // Whether gradient i is routed; all others are the reducer's own.
  bool Holds(size_t i) const { return places_[i].piece != kNone; }
  // Call between steps, when the reducer's layout has changed; the gradients are moved along.
  Status LayOut();
  // The place of gradient i, in its parameter's shape and type. Initially zero. Undefined with
  // owners.
  const torch::Tensor& View(size_t i) const { return places_[i].view; }

  // Call after the reducer's BeginStep(), with the same weight, divided by the reducer's
  // usual_weight().
  void BeginStep(double weight);
  // Reports that the view holds the gradient once the calling thread's current stream is done.
  void MarkReady(size_t i);
  bool IsMarked(size_t i) const;
  // Sends the buckets not sent yet, whether marked or not, after the calling thread's current
  // streams.
  void SendRest();
  // Waits until the reducer has been informed of all gradients. Returns an error of the reducer, or
  // DEADLINE_EXCEEDED if a device did not finish in time.
  Status Deliver(std::chrono::nanoseconds timeout);
  // The status of the devices' collectives so far.
  Status CheckHealth();
  // Call after the reducer's Finish(), with its report: starts to bring the results into the views.
  void Fetch(const StepReport& report);
  // Makes later work on the calling thread's current streams wait for the fetched results.
  void CurrentWaits() const { links_->CurrentWaits(); }
  DeviceLinks& links() const { return *links_; }
  // Aborts the devices' communicators. May be called on any thread.
  void Abort() { links_->Abort(); }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // The gradients of one reducer bucket that share device and type.
  struct Piece {
    std::unique_ptr<GradientRoute> route;
    // The rest applies to one step, and is guarded by the mutex.
    size_t pending = 0;
    bool sent = false;
    // The streams on which its gradients became ready.
    std::vector<c10::Stream> written_on;
  };
  struct Place {
    size_t piece = kNone;
    torch::Tensor view;
  };
  struct Delivery {
    size_t piece = 0;
    // How often each member became ready.
    std::vector<int> marks;
  };

  RoutedGradients(Reducer& reducer, const std::vector<torch::Tensor>& tensors,
                  std::unique_ptr<DeviceLinks> links, const ReducerOptions& options,
                  std::vector<int> owners, Communicator* host);

  // Whether all ranks must send it at the same position in their order.
  bool SentInTurn(const Piece& piece) const;
  std::vector<std::vector<size_t>> Groups() const;
  Result<std::unique_ptr<GradientRoute>> MakeRoute(const std::vector<size_t>& group);
  void NoteStream(Piece& piece);
  void SendReady();
  void Send(Piece& piece);
  void Run();
  Status Hand(const Delivery& delivery);

  Reducer& reducer_;
  const std::vector<torch::Tensor> tensors_;
  const std::unique_ptr<DeviceLinks> links_;
  const bool static_graph_;
  const NonFinite non_finite_;
  // The average that devices compute in place of a hook.
  const PlainAverage average_;
  const std::vector<int> owners_;
  Communicator* const host_;
  double weight_ = 1;
  std::vector<Piece> pieces_;
  std::vector<Place> places_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex. How often gradients became ready in this step, and how often they will;
  // the latter is empty if unknown.
  std::vector<int> marks_;
  std::vector<int> expected_;
  std::deque<Delivery> deliveries_;
  size_t under_way_ = 0;
  bool stopping_ = false;
  Status failure_;
  std::thread thread_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_DEVICE_GRADIENTS_H_
