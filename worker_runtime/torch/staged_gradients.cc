#include "cadre/torch/staged_gradients.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "cadre/torch/tensors.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// How often the thread looks whether a device has got there: libtorch 1.13 has no call that waits,
// and CUDA's own spins. Short beside a copy of a bucket.
constexpr std::chrono::microseconds kPollInterval{20};

size_t BytesOf(const Buffer& buffer) { return buffer.count * SizeOf(buffer.type); }

}  // namespace

StagedGradients::StagedGradients(Reducer& reducer, const std::vector<torch::Tensor>& tensors,
                                 bool static_graph)
    : reducer_(reducer), tensors_(tensors), static_graph_(static_graph), places_(tensors.size()) {
  LayOut();
  BeginStep();
  if (!pieces_.empty()) thread_ = std::thread([this] { Run(); });
}

StagedGradients::~StagedGradients() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

size_t StagedGradients::StreamOf(torch::Device device) {
  for (size_t s = 0; s < streams_.size(); ++s) {
    if (streams_[s]->device() == device) return s;
  }
  streams_.push_back(std::make_unique<DeviceStream>(device));
  return streams_.size() - 1;
}

void StagedGradients::LayOut() {
  const torch::NoGradGuard no_grad;
  pieces_.clear();
  for (const std::vector<size_t>& bucket : reducer_.buckets()) {
    const size_t first = pieces_.size();
    for (const size_t i : bucket) {
      if (IsReducible(tensors_[i])) continue;
      const auto same = [&](const Piece& piece) {
        const torch::Tensor& other = tensors_[piece.members.front()];
        return other.device() == tensors_[i].device() && other.dtype() == tensors_[i].dtype();
      };
      auto piece =
          std::find_if(pieces_.begin() + static_cast<std::ptrdiff_t>(first), pieces_.end(), same);
      if (piece == pieces_.end()) piece = pieces_.insert(piece, Piece());
      piece->members.push_back(i);
    }
  }
  for (size_t p = 0; p < pieces_.size(); ++p) {
    Piece& piece = pieces_[p];
    const torch::Tensor& like = tensors_[piece.members.front()];
    int64_t count = 0;
    for (const size_t i : piece.members) count += tensors_[i].numel();
    piece.stream = StreamOf(like.device());
    piece.flat = torch::zeros({count}, like.options().requires_grad(false));
    streams_[piece.stream]->Uses(piece.flat);
    piece.host = EmptyPinned(like.device(), {count}, ReducedType(like.scalar_type()));
    int64_t offset = 0;
    for (const size_t i : piece.members) {
      // No view to autograd, which would not let zero_grad() detach it.
      torch::Tensor view = torch::empty({0}, piece.flat.options());
      view.set_(piece.flat.storage(), offset, tensors_[i].sizes());
      if (places_[i].view.defined()) view.copy_(places_[i].view);
      places_[i] = {p, offset, std::move(view)};
      offset += tensors_[i].numel();
    }
  }
}

void StagedGradients::BeginStep() {
  const std::lock_guard<std::mutex> lock(mutex_);
  marks_.assign(tensors_.size(), 0);
  if (!static_graph_) expected_.assign(tensors_.size(), 1);
  for (Piece& piece : pieces_) {
    piece.pending = piece.members.size();
    piece.sent = false;
    piece.written_on.clear();
  }
}

void StagedGradients::NoteStream(Piece& piece) {
  const std::optional<c10::Stream> current = streams_[piece.stream]->Current();
  if (!current) return;
  const auto begin = piece.written_on.begin(), end = piece.written_on.end();
  if (std::find(begin, end, *current) == end) piece.written_on.push_back(*current);
}

void StagedGradients::MarkReady(size_t i) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Piece& piece = pieces_[places_[i].piece];
  ++marks_[i];
  if (piece.sent) {
    // Once too often, which the reducer will say.
    Delivery again{places_[i].piece, DevicePoint(), std::vector<int>(piece.members.size(), 0)};
    const auto member = std::find(piece.members.begin(), piece.members.end(), i);
    again.marks[static_cast<size_t>(member - piece.members.begin())] = 1;
    deliveries_.push_back(std::move(again));
    changed_.notify_all();
    return;
  }
  NoteStream(piece);
  if (expected_.empty() || marks_[i] != expected_[i]) return;
  if (--piece.pending == 0) Send(piece);
}

bool StagedGradients::IsMarked(size_t i) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return marks_[i] > 0;
}

void StagedGradients::Send(Piece& piece) {
  DeviceStream& stream = *streams_[piece.stream];
  for (const c10::Stream& written : piece.written_on) stream.WaitFor(written);
  Delivery delivery;
  delivery.piece = static_cast<size_t>(&piece - pieces_.data());
  {
    const DeviceStream::Scope on(stream);
    const torch::NoGradGuard no_grad;
    piece.host.copy_(piece.flat.to(piece.host.scalar_type()), /*non_blocking=*/true);
    delivery.point = stream.Here();
  }
  for (const size_t i : piece.members) delivery.marks.push_back(marks_[i]);
  piece.sent = true;
  deliveries_.push_back(std::move(delivery));
  changed_.notify_all();
}

void StagedGradients::Run() {
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

Status StagedGradients::Await(const DevicePoint& point) {
  while (!point.reached()) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return CancelledError("the gradients are no longer needed");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return OkStatus();
}

Status StagedGradients::Hand(const Delivery& delivery) {
  const Piece& piece = pieces_[delivery.piece];
  try {
    const Status there = Await(delivery.point);
    if (!there.ok()) return there;
  } catch (const std::exception& error) {
    return InternalError("gradients on " + piece.flat.device().str() + ": " + error.what());
  }
  const char* at = static_cast<const char*>(piece.host.data_ptr());
  for (size_t m = 0; m < piece.members.size(); ++m) {
    const Buffer place = reducer_.Gradient(piece.members[m]);
    // One that did not become ready counts as what its place holds.
    if (delivery.marks[m] == 0 && BytesOf(place) > 0 && !reducer_.IsMarked(piece.members[m])) {
      std::memcpy(place.data, at, BytesOf(place));
    }
    for (int mark = 0; mark < delivery.marks[m]; ++mark) {
      const Status marked = reducer_.MarkReady(piece.members[m], at);
      if (!marked.ok()) return marked;
    }
    at += BytesOf(place);
  }
  return OkStatus();
}

void StagedGradients::SendRest() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Piece& piece : pieces_) {
    if (piece.sent) continue;
    NoteStream(piece);
    Send(piece);
  }
  const bool any = std::any_of(marks_.begin(), marks_.end(), [](int marks) { return marks > 0; });
  if (static_graph_ && expected_.empty() && any) expected_ = marks_;
}

Status StagedGradients::Deliver(std::chrono::nanoseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto idle = [this] { return deliveries_.empty() && under_way_ == 0; };
  if (!changed_.wait_for(lock, timeout, idle)) {
    return DeadlineExceededError("gradients did not come from their device to the host in time");
  }
  return failure_;
}

void StagedGradients::Fetch() {
  const torch::NoGradGuard no_grad;
  for (Piece& piece : pieces_) {
    char* at = static_cast<char*>(piece.host.data_ptr());
    for (const size_t i : piece.members) {
      const Buffer place = reducer_.Gradient(i);
      if (BytesOf(place) > 0) std::memcpy(at, place.data, BytesOf(place));
      at += BytesOf(place);
    }
    const DeviceStream& stream = *streams_[piece.stream];
    const DeviceStream::Scope on(stream);
    // To the device first: converted on the host it would not be pinned any more.
    piece.flat.copy_(piece.host.to(piece.flat.device(), /*non_blocking=*/true), true);
  }
}

void StagedGradients::CurrentWaits() const {
  for (const auto& stream : streams_) stream->CurrentWaits();
}

}  // namespace cadre::nn
