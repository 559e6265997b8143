// The ways in which gradients reach the other ranks: through the host's memory, to their owners,
// and between devices; and the order in which they are sent.
#include "worker_runtime/torch/device_gradients.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/status_macros.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "cadre/work.h"
#include "torch/utils.h"
#include "worker_runtime/torch/gradient_checks.h"
#include "worker_runtime/torch/guarded.h"

namespace cadre::nn {
Result<std::unique_ptr<RoutedGradients>> RoutedGradients::Create(
    Reducer& reducer, const std::vector<torch::Tensor>& tensors, std::unique_ptr<DeviceLinks> links,
    const ReducerOptions& options, std::vector<int> owners, Communicator* host) {
  std::unique_ptr<RoutedGradients> routed(
      new RoutedGradients(reducer, tensors, std::move(links), options, std::move(owners), host));
  CADRE_RETURN_IF_ERROR(routed->LayOut());
  routed->BeginStep(1);
  if (!routed->empty()) {
    routed->thread_ = std::thread([routed = routed.get()] { routed->Run(); });
  }
  return routed;
}

RoutedGradients::RoutedGradients(Reducer& reducer, const std::vector<torch::Tensor>& tensors,
                                 std::unique_ptr<DeviceLinks> links, const ReducerOptions& options,
                                 std::vector<int> owners, Communicator* host)
    : reducer_(reducer),
      tensors_(tensors),
      links_(std::move(links)),
      static_graph_(options.static_graph),
      non_finite_(options.non_finite),
      average_(options.hook == nullptr ? PlainAverage()
                                       : options.hook->plain_average().value_or(PlainAverage())),
      owners_(std::move(owners)),
      host_(host),
      places_(tensors.size()) {}

RoutedGradients::~RoutedGradients() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

size_t RoutedGradients::bytes_on_devices() const {
  size_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.route->bytes_on_devices();
  return bytes;
}

// Returns the members of each piece.
std::vector<std::vector<size_t>> RoutedGradients::Groups() const {
  std::vector<std::vector<size_t>> groups;
  for (const std::vector<size_t>& bucket : reducer_.buckets()) {
    const auto first = static_cast<std::ptrdiff_t>(groups.size());
    for (const size_t i : bucket) {
      if (owners_.empty() && IsReducible(tensors_[i])) continue;
      const auto same = [&](const std::vector<size_t>& group) {
        const torch::Tensor& other = tensors_[group.front()];
        return other.device() == tensors_[i].device() && other.dtype() == tensors_[i].dtype();
      };
      auto group = std::find_if(groups.begin() + first, groups.end(), same);
      if (group == groups.end()) group = groups.insert(group, std::vector<size_t>());
      group->push_back(i);
    }
  }
  return groups;
}

Result<std::unique_ptr<GradientRoute>> RoutedGradients::MakeRoute(
    const std::vector<size_t>& group) {
  std::vector<RouteMember> members;
  int64_t offset = 0;
  for (const size_t i : group) {
    members.push_back({i, offset, tensors_[i].numel()});
    offset += tensors_[i].numel();
  }
  const torch::Tensor& like = tensors_[group.front()];
  DeviceStream& stream = links_->StreamOf(like.device());
  DeviceStream& checks = links_->CheckStreamOf(like.device());
  if (!owners_.empty()) {
    std::vector<torch::Tensor> parameters;
    for (const size_t i : group) parameters.push_back(tensors_[i]);
    return MakeOwnerRoute(&reducer_, &stream, std::move(members), std::move(parameters),
                          {owners_[group.front()], host_, links_->CommunicatorOf(like.device()),
                           &checks, non_finite_});
  }
  if (!links_->Reduces(like.device())) {
    return MakeHostRoute(&reducer_, &stream, std::move(members), like);
  }
  return MakeDeviceRoute(&reducer_, &stream, std::move(members), like,
                         {links_->CommunicatorOf(like.device()), &checks, non_finite_, average_});
}

Status RoutedGradients::LayOut() {
  const torch::NoGradGuard no_grad;
  std::vector<Piece> pieces;
  for (const std::vector<size_t>& group : Groups()) {
    Piece& piece = pieces.emplace_back();
    CADRE_ASSIGN_OR_RETURN(piece.route, MakeRoute(group));
    const torch::Tensor& flat = piece.route->flat();
    for (const RouteMember& member : piece.route->members()) {
      const size_t i = member.parameter;
      places_[i].piece = pieces.size() - 1;
      if (!owners_.empty()) continue;
      torch::Tensor view = PartOf(flat, member.offset, tensors_[i].sizes());
      if (places_[i].view.defined()) view.copy_(places_[i].view);
      places_[i].view = std::move(view);
    }
  }
  pieces_ = std::move(pieces);
  return OkStatus();
}

void RoutedGradients::BeginStep(double weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  weight_ = weight;
  marks_.assign(tensors_.size(), 0);
  if (!static_graph_) expected_.assign(tensors_.size(), 1);
  for (Piece& piece : pieces_) {
    piece.pending = piece.route->members().size();
    piece.sent = false;
    piece.written_on.clear();
  }
}

void RoutedGradients::NoteStream(Piece& piece) {
  const std::optional<c10::Stream> current = piece.route->stream().Current();
  if (!current) return;
  const auto begin = piece.written_on.begin(), end = piece.written_on.end();
  if (std::find(begin, end, *current) == end) piece.written_on.push_back(*current);
}

void RoutedGradients::MarkReady(size_t i) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Piece& piece = pieces_[places_[i].piece];
  ++marks_[i];
  if (piece.sent) {
    // The gradient became ready once too often; the reducer reports that as an error.
    const std::vector<RouteMember>& members = piece.route->members();
    Delivery again{places_[i].piece, std::vector<int>(members.size(), 0)};
    const auto member = std::find_if(members.begin(), members.end(),
                                     [&](const RouteMember& one) { return one.parameter == i; });
    again.marks[static_cast<size_t>(member - members.begin())] = 1;
    deliveries_.push_back(std::move(again));
    changed_.notify_all();
    return;
  }
  NoteStream(piece);
  if (expected_.empty() || marks_[i] != expected_[i]) return;
  if (--piece.pending == 0) SendReady();
}

bool RoutedGradients::IsMarked(size_t i) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return marks_[i] > 0;
}

// All ranks must start collectives in the same order, which is the order of the pieces. Gradients
// that go through the reducer's buckets follow the reducer's order.
bool RoutedGradients::SentInTurn(const Piece& piece) const {
  return !owners_.empty() || links_->Reduces(piece.route->stream().device());
}

void RoutedGradients::SendReady() {
  bool others_wait = false;
  for (Piece& piece : pieces_) {
    if (piece.sent) continue;
    const bool in_turn = SentInTurn(piece);
    if (piece.pending == 0 && !(in_turn && others_wait)) Send(piece);
    others_wait = others_wait || (in_turn && !piece.sent);
  }
}

void RoutedGradients::Send(Piece& piece) {
  const torch::NoGradGuard no_grad;
  for (const c10::Stream& written : piece.written_on) piece.route->WaitFor(written);
  Delivery delivery;
  delivery.piece = static_cast<size_t>(&piece - pieces_.data());
  for (const RouteMember& member : piece.route->members()) {
    delivery.marks.push_back(marks_[member.parameter]);
  }
  piece.route->Send(delivery.marks, weight_);
  piece.sent = true;
  deliveries_.push_back(std::move(delivery));
  changed_.notify_all();
}

void RoutedGradients::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !deliveries_.empty(); });
    if (stopping_) return;
    const Delivery delivery = std::move(deliveries_.front());
    deliveries_.pop_front();
    ++under_way_;
    lock.unlock();
    const Status handed = Hand(delivery);
    lock.lock();
    --under_way_;
    failure_.Update(handed);
    changed_.notify_all();
  }
}

Status RoutedGradients::Hand(const Delivery& delivery) {
  GradientRoute& route = *pieces_[delivery.piece].route;
  try {
    return route.Hand(delivery.marks, [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      return stopping_;
    });
  } catch (const std::exception& error) {
    return InternalError("gradients on " + route.stream().device().str() + ": " + OneLine(error));
  }
}

void RoutedGradients::SendRest() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Piece& piece : pieces_) {
    if (piece.sent) continue;
    NoteStream(piece);
    Send(piece);
  }
  const bool any = std::any_of(marks_.begin(), marks_.end(), [](int marks) { return marks > 0; });
  if (static_graph_ && expected_.empty() && any) expected_ = marks_;
}

Status RoutedGradients::Deliver(std::chrono::nanoseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto idle = [this] { return deliveries_.empty() && under_way_ == 0; };
  if (!changed_.wait_for(lock, timeout, idle)) {
    return DeadlineExceededError("gradients did not come from their device to the host in time");
  }
  return failure_;
}

Status RoutedGradients::CheckHealth() {
  Status health;
  for (const Piece& piece : pieces_) health.Update(piece.route->CheckHealth());
  return health;
}

void RoutedGradients::Fetch(const StepReport& report) {
  const torch::NoGradGuard no_grad;
  for (const Piece& piece : pieces_) piece.route->Fetch(report);
}

namespace {

// How often the thread polls whether a device has reached a point: libtorch 1.13 has no blocking
// call, and CUDA's own spins. It is short compared with the copy of a bucket.
constexpr std::chrono::microseconds kPollInterval{20};

size_t BytesOf(const Buffer& buffer) { return buffer.count * SizeOf(buffer.type); }

class HostRoute : public GradientRoute {
 public:
  HostRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members,
            const torch::Tensor& like)
      : GradientRoute(reducer, stream, std::move(members)) {
    flat_ = torch::zeros({count()}, like.options().requires_grad(false));
    stream_->Uses(flat_);
    host_ = EmptyPinned(like.device(), {count()}, ReducedType(like.scalar_type()));
    PinBuckets(like.device());
  }
  ~HostRoute() override {
    const auto until = std::chrono::steady_clock::now() + kLastDeviceWait;
    try {
      (void)Await(fetched_, [until] { return std::chrono::steady_clock::now() > until; });
    } catch (const std::exception&) {
      // A device that has failed no longer reads the memory.
    }
  }

  void Send(const std::vector<int>&, double) override {
    const DeviceStream::Scope on(*stream_);
    host_.copy_(flat_.to(host_.scalar_type()), /*non_blocking=*/true);
    sent_ = stream_->Here();
  }

  Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) override {
    const Status there = Await(sent_, cancelled);
    if (!there.ok()) return there;
    const char* at = static_cast<const char*>(host_.data_ptr());
    for (size_t m = 0; m < members_.size(); ++m) {
      const size_t parameter = members_[m].parameter;
      const Buffer place = reducer_.Gradient(parameter);
      // A gradient that did not become ready counts with the content of its place in the bucket.
      if (marks[m] == 0 && BytesOf(place) > 0 && !reducer_.IsMarked(parameter)) {
        std::memcpy(place.data, at, BytesOf(place));
      }
      for (int mark = 0; mark < marks[m]; ++mark) {
        const Status marked = reducer_.MarkReady(parameter, at);
        if (!marked.ok()) return marked;
      }
      at += BytesOf(place);
    }
    return OkStatus();
  }

  void Fetch(const StepReport&) override {
    if (runs_.empty()) CopyFromBuckets();
    const DeviceStream::Scope on(*stream_);
    // The data is copied to the device before it is converted: a converted host tensor would not be
    // pinned.
    if (runs_.empty()) flat_.copy_(host_.to(flat_.device(), /*non_blocking=*/true), true);
    for (const Run& run : runs_) {
      flat_.narrow(0, run.offset, run.bucket.numel())
          .copy_(run.bucket.to(flat_.device(), /*non_blocking=*/true), true);
    }
    fetched_ = stream_->Here();
  }

 private:
  // Members that are adjacent in the reducer's bucket too, so that the device copies the bucket
  // itself.
  struct Run {
    int64_t offset = 0;
    torch::Tensor bucket;
    std::shared_ptr<void> pinned;
  };

  void CopyFromBuckets() {
    char* at = static_cast<char*>(host_.data_ptr());
    for (const RouteMember& member : members_) {
      const Buffer place = reducer_.Gradient(member.parameter);
      if (BytesOf(place) > 0) std::memcpy(at, place.data, BytesOf(place));
      at += BytesOf(place);
    }
  }

  // Pins the buckets of all members or of none.
  void PinBuckets(torch::Device device) {
    for (size_t begin = 0; begin < members_.size();) {
      const Buffer first = reducer_.Gradient(members_[begin].parameter);
      char* const memory = static_cast<char*>(first.data);
      size_t end = begin, bytes = 0;
      for (; end < members_.size(); ++end) {
        const Buffer next = reducer_.Gradient(members_[end].parameter);
        if (next.data != memory + bytes) break;
        bytes += BytesOf(next);
      }
      auto pinned = Pin(device, reducer_.Storage(members_[begin].parameter), memory, bytes);
      if (pinned == nullptr) return runs_.clear();
      const auto count = static_cast<int64_t>(bytes / SizeOf(first.type));
      runs_.push_back({members_[begin].offset,
                       torch::from_blob(memory, {count}, torch::dtype(host_.scalar_type())),
                       std::move(pinned)});
      begin = end;
    }
  }

  // The host copy of the flat tensor, which the reducer reads.
  torch::Tensor host_;
  DevicePoint sent_, fetched_;
  std::vector<Run> runs_;
};

}  // namespace

Status GradientRoute::Await(const DevicePoint& point, const std::function<bool()>& cancelled) {
  while (!point.reached()) {
    if (cancelled()) return CancelledError("the gradients are no longer needed");
    std::this_thread::sleep_for(kPollInterval);
  }
  return OkStatus();
}

size_t GradientRoute::ParameterAt(int64_t element) const {
  const auto behind = std::find_if(
      members_.begin(), members_.end(),
      [&](const RouteMember& member) { return element < member.offset + member.count; });
  return (behind == members_.end() ? members_.back() : *behind).parameter;
}

void GradientRoute::Weigh(double weight) {
  if (weight == 0) {
    // With weight 0 the content does not count, even if it is NaN.
    flat_.zero_();
  } else if (weight != 1) {
    flat_.mul_(weight);
  }
}

double GradientRoute::RestOfAverage(const StepReport& report, int ranks) const {
  return report.weight > 0 ? ranks * reducer_.usual_weight() / report.weight : 1;
}

Status GradientRoute::MarkReady(const std::vector<int>& marks) {
  for (size_t m = 0; m < members_.size(); ++m) {
    for (int mark = 0; mark < marks[m]; ++mark) {
      const Status marked = reducer_.MarkReady(members_[m].parameter);
      if (!marked.ok()) return marked;
    }
  }
  return OkStatus();
}

std::unique_ptr<GradientRoute> MakeHostRoute(Reducer* reducer, DeviceStream* stream,
                                             std::vector<RouteMember> members,
                                             const torch::Tensor& like) {
  return std::make_unique<HostRoute>(reducer, stream, std::move(members), like);
}

namespace {

// How often a thread that waits for the other ranks checks whether it was cancelled.
constexpr std::chrono::milliseconds kLookInterval{50};

class OwnerRoute : public GradientRoute {
 public:
  OwnerRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members,
             std::vector<torch::Tensor> parameters, const OwnerRouteOptions& options)
      : GradientRoute(reducer, stream, std::move(members)),
        parameters_(std::move(parameters)),
        options_(options),
        mine_(options.host->rank() == options.owner) {
    if (options_.non_finite == NonFinite::kIgnore || count() == 0) return;
    const torch::Tensor& like = parameters_.front();
    if (options_.device == nullptr) {
      finite_.emplace(&on_host_, torch::empty({0}, ReducedType(like.scalar_type())), false);
      return;
    }
    const DeviceStream::Scope on(*options_.checks);
    finite_.emplace(options_.checks, like, options_.non_finite == NonFinite::kError);
  }
  ~OwnerRoute() override {
    // All ranks have sent, and kernels may still use the result.
    if (work_ != nullptr) (void)work_->Wait(kLastDeviceWait);
  }

  size_t bytes_on_devices() const override {
    const bool on_device = options_.device != nullptr;
    return on_device ? static_cast<size_t>(count()) * parameters_.front().element_size() : 0;
  }

  void Send(const std::vector<int>& marks, double weight) override {
    const DeviceStream::Scope on(*stream_);
    Pack(marks);
    weight_ = weight;
    if (options_.device == nullptr) return;
    if (finite_ && weight > 0) CheckOnDevice();
    Weigh(weight);
    Start(*options_.device);
    // Freed memory is not reused before the stream has reached this point.
    if (!mine_) flat_ = torch::Tensor();
  }

  Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) override {
    const torch::NoGradGuard no_grad;
    Status status;
    if (options_.device == nullptr) {
      status = ReduceByHost(cancelled);
    } else if (finite_ && options_.non_finite == NonFinite::kSkip) {
      status = Await(finite_->checked(), cancelled);
    }
    if (!status.ok()) return status;
    if (finite_ && weight_ > 0) {
      if (const auto element = finite_->found()) reducer_.MarkNotFinite(ParameterAt(*element));
    }
    return MarkReady(marks);
  }

  void Fetch(const StepReport& report) override {
    if (mine_ && flat_.defined()) Average(report);
    for (size_t m = 0; m < members_.size(); ++m) {
      // A gradient that no rank used stays.
      if (!report.used[members_[m].parameter]) continue;
      parameters_[m].mutable_grad() = mine_ ? View(m) : torch::Tensor();
    }
    flat_ = torch::Tensor();
  }

  Status CheckHealth() override {
    if (options_.device == nullptr || work_ == nullptr || !work_->done()) return OkStatus();
    return work_->Wait(std::chrono::nanoseconds(0));
  }

 private:
  // Gradients that became ready are moved out. The others count with their content, and stay until
  // it is known whether another rank had them.
  void Pack(const std::vector<int>& marks) {
    std::vector<torch::Tensor> parts;
    for (size_t m = 0; m < members_.size(); ++m) {
      const torch::Tensor& parameter = parameters_[m];
      torch::Tensor& grad = parameters_[m].mutable_grad();
      if (!grad.defined()) {
        parts.push_back(
            torch::zeros({members_[m].count}, parameter.options().requires_grad(false)));
        continue;
      }
      stream_->Uses(grad);
      parts.push_back(grad.detach().reshape({-1}));
      if (marks[m] > 0) grad = torch::Tensor();
    }
    flat_ = torch::cat(parts);
  }

  void CheckOnDevice() {
    options_.checks->WaitFor(*stream_->Current());
    options_.checks->Uses(flat_);
    finite_->Check(flat_);
    options_.checks->CurrentWaits();
  }

  void Start(Communicator& communicator) {
    if (flat_.numel() == 0) return;
    const Reduction average = AverageOf(flat_, communicator.size());
    work_ = communicator.Reduce(BufferOfFlat(flat_), average, options_.owner);
  }

  Status ReduceByHost(const std::function<bool()>& cancelled) {
    {
      // This copy waits for the device.
      const DeviceStream::Scope on(*stream_);
      flat_ = flat_.to(torch::kCPU, ReducedType(flat_.scalar_type()));
    }
    if (finite_ && weight_ > 0) finite_->Check(flat_);
    if (options_.host->size() == 1) return OkStatus();
    Weigh(weight_);
    Start(*options_.host);
    if (work_ == nullptr) return OkStatus();
    while (!work_->done()) {
      if (cancelled()) {
        options_.host->Abort();
        return work_->Wait(kAbortGrace);
      }
      (void)work_->Wait(kLookInterval);
    }
    const Status reduced = work_->Wait(std::chrono::nanoseconds(0));
    if (!mine_) flat_ = torch::Tensor();
    return reduced;
  }

  void Average(const StepReport& report) {
    const torch::Tensor& like = parameters_.front();
    {
      const DeviceStream::Scope on(*stream_);
      flat_ = flat_.to(like.device(), like.scalar_type());
      const int ranks = options_.host->size();
      const double rest = ranks > 1 ? RestOfAverage(report, ranks) : 1;
      if (rest != 1) flat_.mul_(rest);
    }
    // The optimizer's stream uses memory that this stream allocated.
    stream_->CurrentUses(flat_);
  }

  torch::Tensor View(size_t m) const {
    return PartOf(flat_, members_[m].offset, parameters_[m].sizes());
  }

  std::vector<torch::Tensor> parameters_;
  const OwnerRouteOptions options_;
  const bool mine_;
  const DeviceStream on_host_{torch::kCPU};
  std::optional<FiniteCheck> finite_;
  double weight_ = 1;
  std::shared_ptr<Work> work_;
};

}  // namespace

std::unique_ptr<GradientRoute> MakeOwnerRoute(Reducer* reducer, DeviceStream* stream,
                                              std::vector<RouteMember> members,
                                              std::vector<torch::Tensor> parameters,
                                              const OwnerRouteOptions& options) {
  return std::make_unique<OwnerRoute>(reducer, stream, std::move(members), std::move(parameters),
                                      options);
}

namespace {

class DeviceRoute : public GradientRoute {
 public:
  DeviceRoute(Reducer* reducer, DeviceStream* stream, std::vector<RouteMember> members,
              const DeviceRouteOptions& options)
      : GradientRoute(reducer, stream, std::move(members)),
        checks_(*options.checks),
        communicator_(options.communicator),
        non_finite_(options.non_finite),
        average_(options.average) {}
  ~DeviceRoute() override {
    // All ranks have sent, and kernels may still use the result.
    if (work_ != nullptr) (void)work_->Wait(kLastDeviceWait);
  }

  Status Allocate(const torch::Tensor& like);
  void WaitFor(c10::Stream written) override {
    GradientRoute::WaitFor(written);
    if (finite_) checks_.WaitFor(written);
  }
  void Send(const std::vector<int>& marks, double weight) override;
  Status Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) override;
  void Fetch(const StepReport& report) override;
  Status CheckHealth() override;
  size_t bytes_on_devices() const override {
    return communicator_ == nullptr ? 0 : sent().nbytes();
  }

 private:
  // Makes the flat tensor on the device; its memory is the communicator's, if there is one.
  Result<torch::Tensor> MakeFlat(const torch::TensorOptions& options);

  // A communicator may free its memory at once, as NCCL does, even if kernels still read it. So the
  // device finishes its queued work first; if it cannot, the memory is leaked.
  static void Free(std::shared_ptr<void> memory, torch::Device device);

  // The tensor that the communicator reduces.
  const torch::Tensor& sent() const { return narrow_.defined() ? narrow_ : flat_; }
  void Check();
  void Save(const std::vector<int>& marks);

  struct Saved {
    size_t member = 0;
    torch::Tensor content;
  };

  torch::Tensor View(size_t member) const {
    return flat_.narrow(0, members_[member].offset, members_[member].count);
  }

  DeviceStream& checks_;
  Communicator* const communicator_;
  const NonFinite non_finite_;
  const PlainAverage average_;
  // Defined if gradients travel in another type than their own.
  torch::Tensor narrow_;
  std::optional<FiniteCheck> finite_;
  double weight_ = 1;
  // Gradients that did not become ready on this rank, saved before the other ranks' parts were
  // added.
  std::vector<Saved> saved_;
  std::shared_ptr<Work> work_;
};

Result<torch::Tensor> DeviceRoute::MakeFlat(const torch::TensorOptions& options) {
  if (communicator_ == nullptr) {
    const torch::Tensor flat = torch::zeros({count()}, options);
    stream_->Uses(flat);
    return flat;
  }
  const size_t bytes = static_cast<size_t>(count()) * options.dtype().itemsize();
  // The memory does not come from libtorch's allocator, because the communicator has to know it.
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<void> memory, communicator_->AllocateBuffer(bytes));
  return at::for_blob(memory.get(), {count()})
      .deleter([memory, device = options.device()](void*) { Free(memory, device); })
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

Status DeviceRoute::Allocate(const torch::Tensor& like) {
  const auto options = like.options().requires_grad(false);
  CADRE_ASSIGN_OR_RETURN(flat_, MakeFlat(options));
  const torch::ScalarType sent_as = TypeSent(average_, like.scalar_type());
  if (sent_as != like.scalar_type()) {
    CADRE_ASSIGN_OR_RETURN(narrow_, MakeFlat(options.dtype(sent_as)));
  }
  if (non_finite_ != NonFinite::kIgnore) {
    checks_.Uses(sent());
    const DeviceStream::Scope on(checks_);
    finite_.emplace(&checks_, sent(), /*sticky=*/non_finite_ == NonFinite::kError);
  }
  return OkStatus();
}

void DeviceRoute::Free(std::shared_ptr<void> memory, torch::Device device) {
  try {
    const DevicePoint given(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    const auto until = std::chrono::steady_clock::now() + kLastDeviceWait;
    const Status done = Await(given, [until] { return std::chrono::steady_clock::now() > until; });
    if (!done.ok()) new std::shared_ptr<void>(std::move(memory));
  } catch (const std::exception&) {
    // A device that has failed no longer reads the memory.
  }
}

// The check is queued after the work that was waited for, and before the stream goes on.
void DeviceRoute::Check() {
  if (finite_ && weight_ > 0 && sent().numel() > 0) {
    finite_->Check(sent());
    checks_.CurrentWaits();
  }
}

void DeviceRoute::Send(const std::vector<int>& marks, double weight) {
  const DeviceStream::Scope on(*stream_);
  saved_.clear();
  weight_ = weight;
  if (!narrow_.defined()) Check();
  if (communicator_ != nullptr) {
    Save(marks);
    Weigh(weight);
  }
  if (average_.limit) flat_.clamp_(-*average_.limit, *average_.limit);
  if (narrow_.defined()) {
    narrow_.copy_(flat_);
    checks_.WaitFor(*stream_->Current());
    Check();
  }
  if (communicator_ == nullptr) return;
  torch::Tensor sent = this->sent();
  const Reduction average = AverageOf(sent, communicator_->size());
  work_ = communicator_->AllReduce(BufferOfFlat(sent), average);
}

void DeviceRoute::Save(const std::vector<int>& marks) {
  for (size_t m = 0; m < members_.size(); ++m) {
    if (marks[m] == 0) saved_.push_back({m, View(m).clone()});
  }
}

Status DeviceRoute::Hand(const std::vector<int>& marks, const std::function<bool()>& cancelled) {
  const bool skips = non_finite_ == NonFinite::kSkip;
  // A result of an earlier step does not apply to this one unless the check ran again.
  if (finite_ && (!skips || weight_ > 0)) {
    if (skips) {
      const Status there = Await(finite_->checked(), cancelled);
      if (!there.ok()) return there;
    }
    if (const auto element = finite_->found()) reducer_.MarkNotFinite(ParameterAt(*element));
  }
  return MarkReady(marks);
}

void DeviceRoute::Fetch(const StepReport& report) {
  const DeviceStream::Scope on(*stream_);
  if (narrow_.defined()) flat_.copy_(narrow_);
  if (communicator_ == nullptr) return;
  const double rest = RestOfAverage(report, communicator_->size());
  if (rest != 1) flat_.mul_(rest);
  for (const Saved& saved : saved_) {
    if (!report.used[members_[saved.member].parameter]) View(saved.member).copy_(saved.content);
  }
}

Status DeviceRoute::CheckHealth() {
  if (work_ == nullptr || !work_->done()) return OkStatus();
  return work_->Wait(std::chrono::nanoseconds(0));
}

}  // namespace

Result<std::unique_ptr<GradientRoute>> MakeDeviceRoute(Reducer* reducer, DeviceStream* stream,
                                                       std::vector<RouteMember> members,
                                                       const torch::Tensor& like,
                                                       const DeviceRouteOptions& options) {
  auto route = std::make_unique<DeviceRoute>(reducer, stream, std::move(members), options);
  CADRE_RETURN_IF_ERROR(route->Allocate(like));
  return std::unique_ptr<GradientRoute>(std::move(route));
}

}  // namespace cadre::nn
