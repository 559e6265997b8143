// Gradients that a Reducer cannot hold where they are, because they are on a device or have 16
// bits: they lie in buckets beside their parameters. A bucket sets out as soon as its gradients are
// ready, on a stream of its own while the backward pass goes on, by its route (gradient_route.h); a
// thread tells the reducer.
#ifndef CADRE_TORCH_ROUTED_GRADIENTS_H_
#define CADRE_TORCH_ROUTED_GRADIENTS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/reducer.h"
#include "cadre/status.h"
#include "cadre/torch/device_links.h"
#include "cadre/torch/device_stream.h"
#include "cadre/torch/gradient_route.h"
#include "torch/types.h"

namespace cadre::nn {

// MarkReady() may be called by any thread between BeginStep() and SendRest(); all else by one
// thread at a time. Throws what libtorch throws.
class RoutedGradients {
 public:
  // `tensors` are those of the reducer's parameters, of which those are reduced_elsewhere whose
  // device the links reduce. The reducer must outlive this. Collective where there are links, as
  // is LayOut(); RESOURCE_EXHAUSTED: some rank's device has no memory. With `owners`, a rank for
  // each: all gradients, on the host, too, go to their owner alone and have no bucket; all are
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
  // Bytes that this rank's devices give to collectives in a step.
  size_t bytes_on_devices() const;
  // Whether gradient i is one of them; all others are the reducer's own.
  bool Holds(size_t i) const { return places_[i].piece != kNone; }
  // Between steps, when the reducer's layout has changed: the gradients move along.
  Status LayOut();
  // Where gradient i lies, in its parameter's shape and type. Zero at first. Undefined with owners.
  const torch::Tensor& View(size_t i) const { return places_[i].view; }

  // After the reducer's, with the same weight.
  void BeginStep(double weight);
  // The view holds the gradient once the calling thread's current stream is done.
  void MarkReady(size_t i);
  bool IsMarked(size_t i) const;
  // Sends what is still here, marked or not, behind the calling thread's current streams.
  void SendRest();
  // Until the reducer knows of all. An error of the reducer's, or DEADLINE_EXCEEDED: a device did
  // not get there.
  Status Deliver(std::chrono::nanoseconds timeout);
  // What became of the devices' collectives so far.
  Status CheckHealth();
  // After the reducer's Finish(): what it came to, on its way into the views.
  void Fetch(const StepReport& report);
  // What the calling thread's current streams are given from now on sees what was fetched.
  void CurrentWaits() const { links_->CurrentWaits(); }
  DeviceLinks& links() const { return *links_; }
  // Ends what the devices' communicators do. Any thread.
  void Abort() { links_->Abort(); }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // The gradients of one of the reducer's buckets that are of one device and type.
  struct Piece {
    std::unique_ptr<GradientRoute> route;
    // The rest is of one step, under the mutex.
    size_t pending = 0;
    bool sent = false;
    // Those on which its gradients became ready.
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

  // Whether all ranks must send it in the same place.
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
  // What devices do in place of a hook.
  const PlainAverage average_;
  const std::vector<int> owners_;
  Communicator* const host_;
  double weight_ = 1;
  std::vector<Piece> pieces_;
  std::vector<Place> places_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex. How often gradients became ready in this step, and will; empty: nobody knows.
  std::vector<int> marks_;
  std::vector<int> expected_;
  std::deque<Delivery> deliveries_;
  size_t under_way_ = 0;
  bool stopping_ = false;
  Status failure_;
  std::thread thread_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_ROUTED_GRADIENTS_H_
