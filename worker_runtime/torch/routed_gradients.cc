#include "cadre/torch/routed_gradients.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "cadre/status_macros.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/tensors.h"
#include "torch/utils.h"

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

// The members of each piece.
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
    // Once too often, which the reducer will say.
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

// Collectives must set out in the same order on all ranks: that of the pieces. What goes through
// the reducer's buckets has the reducer's.
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

}  // namespace cadre::nn
