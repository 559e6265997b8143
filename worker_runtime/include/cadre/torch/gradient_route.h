// How gradients that travel together become those of all ranks, or of the one that owns them: on
// their device, where the ranks' devices have a communicator, or through the host's memory.
#ifndef CADRE_TORCH_GRADIENT_ROUTE_H_
#define CADRE_TORCH_GRADIENT_ROUTE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

namespace cadre::nn {

// One gradient's place, in elements.
struct RouteMember {
  size_t parameter = 0;
  int64_t offset = 0;
  int64_t count = 0;
};

// In each step Send(), Hand() and Fetch(), in this order, one at a time; Hand() on another thread.
// Throws what libtorch throws.
class GradientRoute {
 public:
  virtual ~GradientRoute() = default;
  GradientRoute(const GradientRoute&) = delete;
  GradientRoute& operator=(const GradientRoute&) = delete;

  const std::vector<RouteMember>& members() const { return members_; }
  DeviceStream& stream() const { return *stream_; }
  // The gradients, one behind the other. Zero at first. Undefined between steps, and of no concern
  // to others, where gradients go to an owner.
  const torch::Tensor& flat() const { return flat_; }
  // Given to the devices' collectives in a step.
  virtual size_t bytes_on_devices() const { return 0; }

  // What is sent from now on waits for all that `written` has been given.
  virtual void WaitFor(c10::Stream written) { stream_->WaitFor(written); }
  // Sets out, behind what was waited for. `marks`: how often each member became ready; one
  // that did not counts as what its place holds. `weight` is this rank's, by the reducer's
  // usual_weight().
  virtual void Send(const std::vector<int>& marks, double weight) = 0;
  // Tells the reducer about the members. CANCELLED when `cancelled` says so.
  virtual Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) = 0;
  // After the reducer's Finish(): the stream gets what brings the result into the flat tensor.
  virtual void Fetch(const StepReport& report) = 0;
  // What became of the collectives so far.
  virtual Status CheckHealth() { return OkStatus(); }

 protected:
  GradientRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members)
      : reducer_(*reducer), stream_(stream), members_(std::move(members)) {}

  // Whose gradient has that element of all of them.
  size_t ParameterAt(int64_t element) const;
  // Multiplies flat() by the weight of this rank's step, as Send() got it.
  void Weigh(double weight);
  // What makes the average of the ranks' parts, weighed and divided by the number of ranks, once
  // these have been added up.
  double RestOfAverage(const StepReport& report, int ranks) const;
  // Tells the reducer how often each member became ready, of parameters that are reduced_elsewhere.
  Status MarkReady(const std::vector<int>& marks);
  // Of all members together.
  int64_t count() const { return members_.back().offset + members_.back().count; }
  // Until the device has come to `point`.
  static Status Await(const DevicePoint& point, const std::function<bool()>& cancelled);

  Reducer& reducer_;
  DeviceStream* const stream_;
  const std::vector<RouteMember> members_;
  torch::Tensor flat_;
};

// Through pinned memory into the reducer's buckets, and back. `like` has the members' type and
// device.
std::unique_ptr<GradientRoute> MakeHostRoute(Reducer* reducer, DeviceStream* stream,
                                             std::vector<RouteMember> members,
                                             const torch::Tensor& like);

// Collective where there is a communicator: the average of what the ranks' devices hold, by
// `communicator`, whose operations run on `stream`. Null: there is one rank, and nothing to add.
// The parameters are reduced_elsewhere. With NonFinite::kError what is not finite is told in the
// step after, so that nothing waits for the device; with kSkip Hand() waits. It is looked for on
// `checks`, while the gradients before are on their way; where they travel in another type, in what
// is sent.
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

// Of gradients that one rank alone needs, which are not in buckets but where autograd put them:
// `parameters` has those that are the members. Send() packs them and takes them away; after Fetch()
// the owner has the average, and the others nothing, of those that some rank used. `device` is the
// devices' communicator, in whose order Send() starts; null: Hand() reduces by `host`, in the order
// of its calls. The parameters are reduced_elsewhere. What is not finite: as above, but by the host
// it is known in its step.
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

}  // namespace cadre::nn

#endif  // CADRE_TORCH_GRADIENT_ROUTE_H_
