#include "worker_runtime/torch/fully_sharded/flat_parameter.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "ATen/record_function.h"
#include "c10/core/Allocator.h"
#include "c10/core/StorageImpl.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// The alignment of libtorch's own allocations, so that kernels see the same one as without
// sharding.
constexpr int64_t kAlignmentBytes = 64;

int64_t RoundUp(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

void SetMemory(const torch::Tensor& flat, c10::DataPtr memory, size_t bytes) {
  c10::StorageImpl* const storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(bytes);
}

}  // namespace

std::string RankName(const ShardRoute& route) {
  const std::string rank = "rank " + std::to_string(route.parts.host->rank());
  if (route.replicas.host == nullptr) return rank;
  return rank + " of replica " + std::to_string(route.replicas.host->rank());
}

FlatParameter::FlatParameter(std::vector<FlatMember> members, bool trained, const ShardTypes& types,
                             const torch::Device& device, const ShardRoute& route)
    : members_(std::move(members)), trained_(trained), types_(types), route_(route) {
  const torch::NoGradGuard no_grad;
  LayOut();
  const auto options = torch::TensorOptions(device);
  flat_ = torch::empty({count_}, options.dtype(types_.gathered));
  const int64_t part = count_ / route_.parts.host->size();
  shard_ = offloads() ? EmptyPinned(device, {part}, types_.kept)
                      : torch::empty({part}, options.dtype(types_.kept));
  shard_.zero_();
  shard_.set_requires_grad(trained_);
  for (const FlatMember& member : members_) {
    views_.push_back(PartOf(flat_, member.offset, member.shape));
  }
  allocated_ = true;
  (void)Free();
}

FlatParameter::~FlatParameter() {
  if (gather_ != nullptr) (void)Await(route_.parts, gather_);
  for (const Reduction& reduction : reductions_) {
    if (reduction.work != nullptr) (void)Await(route_.parts, reduction.work);
  }
  for (const Reduction& reduction : across_) {
    if (reduction.work != nullptr) (void)Await(route_.replicas, reduction.work);
  }
}

void FlatParameter::LayOut() {
  const auto element = static_cast<int64_t>(c10::elementSize(types_.gathered));
  for (FlatMember& member : members_) {
    member.shape = member.tensor.sizes().vec();
    member.count = member.tensor.numel();
    member.offset = count_;
    count_ += RoundUp(member.count, kAlignmentBytes / element);
  }
  count_ = RoundUp(count_, route_.parts.host->size());
}

torch::Tensor FlatParameter::MemberOf(const torch::Tensor& whole, size_t member) const {
  const FlatMember& one = members_[member];
  return whole.narrow(0, one.offset, one.count).view(one.shape);
}

torch::Tensor FlatParameter::OwnPartOf(const torch::Tensor& whole) const {
  const int64_t part = count_ / route_.parts.host->size();
  return whole.narrow(0, part * route_.parts.host->rank(), part);
}

FlatParameter::OwnRange FlatParameter::OwnRangeOf(size_t member) const {
  const FlatMember& one = members_[member];
  const int64_t part = count_ / route_.parts.host->size(), first = part * route_.parts.host->rank();
  const int64_t begin = std::max(one.offset, first);
  const int64_t end = std::min(one.offset + one.count, first + part);
  if (begin >= end) return {};
  return {begin - one.offset, end - begin, begin - first};
}

void FlatParameter::Empty(const FlatMember& member) const {
  torch::Tensor(member.tensor).set_data(torch::empty({0}, flat_.options()));
}

void FlatParameter::Take(size_t member) {
  const torch::NoGradGuard no_grad;
  const OwnRange own = OwnRangeOf(member);
  const FlatMember& from = members_[member];
  if (own.count > 0) {
    shard_.detach()
        .narrow(0, own.at, own.count)
        .copy_(from.tensor.detach().reshape(-1).narrow(0, own.begin, own.count));
  }
  Empty(from);
}

// Allocates on the current stream.
void FlatParameter::Allocate() {
  c10::StorageImpl* const storage = flat_.storage().unsafeGetStorageImpl();
  c10::Allocator* allocator = storage->allocator();
  if (allocator == nullptr) allocator = c10::GetAllocator(flat_.device().type());
  SetMemory(flat_, allocator->allocate(gathered_bytes()), gathered_bytes());
  allocated_ = true;
}

Status FlatParameter::Await(const RankRoute& ranks, const std::shared_ptr<Work>& work) {
  return WaitOrAbort(ranks.communicator(), work, route_.timeout);
}

Status FlatParameter::StartGather() {
  const torch::NoGradGuard no_grad;
  const RankRoute& ranks = route_.parts;
  // The gather runs after the optimizer's step and after earlier uses of the memory.
  if (const auto current = ranks.stream->Current()) ranks.stream->WaitFor(*current);
  const DeviceStream::Scope on(*ranks.stream);
  const bool here = ranks.alone() || !through_host(ranks);
  sent_ = shard_.detach();
  if (here) sent_ = sent_.to(flat_.device(), types_.kept, /*non_blocking=*/true);
  sent_ = sent_.to(types_.gathered);
  if (here) Allocate();
  if (ranks.alone()) {
    flat_.copy_(sent_);
    there_ = ranks.stream->Here();
    return OkStatus();
  }
  if (through_host(ranks)) {
    sent_ = sent_.cpu();
    received_ = torch::empty({count_}, sent_.options());
  }
  gather_ = ranks.communicator().AllGather(BufferOfFlat(sent_),
                                           BufferOfFlat(received_.defined() ? received_ : flat_));
  if (ranks.device == nullptr) return OkStatus();
  // On a device the stream's order is enough; the host does not wait.
  route_.under_way->push_back(std::exchange(gather_, nullptr));
  there_ = ranks.stream->Here();
  sent_ = torch::Tensor();
  return OkStatus();
}

Status FlatParameter::FinishGather() {
  const torch::NoGradGuard no_grad;
  Status status;
  if (gather_ != nullptr) status = Await(route_.parts, std::exchange(gather_, nullptr));
  const DeviceStream& stream = *route_.parts.stream;
  {
    const DeviceStream::Scope on(stream);
    if (received_.defined()) {
      if (status.ok()) {
        Allocate();
        flat_.copy_(received_);
        there_ = stream.Here();
      }
      received_ = torch::Tensor();
    }
    sent_ = torch::Tensor();
  }
  // The wait is not for later work of the stream, such as the reduction of the previous unit.
  if (const auto current = stream.Current()) there_.Block(*current);
  return status;
}

void FlatParameter::GatherNothing() {
  const torch::NoGradGuard no_grad;
  {
    const DeviceStream::Scope on(*route_.parts.stream);
    if (!allocated_) Allocate();
    flat_.zero_();
  }
  route_.parts.stream->CurrentWaits();
}

void FlatParameter::Show() {
  if (std::exchange(shown_, true)) return;
  // Tools that record operators should not see this as a use of the parameters.
  const at::DisableRecordFunctionGuard unseen;
  for (size_t m = 0; m < members_.size(); ++m) members_[m].tensor.set_data(views_[m]);
}

Status FlatParameter::Free() {
  // No gather may write to memory that is about to be freed.
  const Status status = gather_ == nullptr ? OkStatus() : FinishGather();
  if (std::exchange(shown_, false)) {
    for (const FlatMember& member : members_) Empty(member);
  }
  as_kept_ = torch::Tensor();
  GiveBack();
  return status;
}

void FlatParameter::GiveBack() {
  if (!std::exchange(allocated_, false)) return;
  // The memory is freed in the order of the stream that allocated it, after its last use.
  DeviceStream& stream = *route_.parts.stream;
  if (const auto current = stream.Current()) stream.WaitFor(*current);
  SetMemory(flat_, c10::DataPtr(nullptr, flat_.device()), 0);
}

Status FlatParameter::ShowAsKept() {
  if (types_.kept == types_.gathered) return OkStatus();
  const torch::NoGradGuard no_grad;
  torch::Tensor whole;
  const Status gathered = GatherOnHost(shard_, &whole);
  if (!gathered.ok()) return gathered;
  as_kept_ = whole.to(flat_.device());
  for (size_t m = 0; m < members_.size(); ++m) members_[m].tensor.set_data(MemberOf(as_kept_, m));
  GiveBack();
  return OkStatus();
}

void FlatParameter::KeepOwnPart() {
  const torch::NoGradGuard no_grad;
  shard_.detach().copy_(OwnPartOf(as_kept_.defined() ? as_kept_ : flat_));
}

Status FlatParameter::PackGradients(torch::Tensor* whole) {
  *whole = torch::zeros({count_}, flat_.options().dtype(types_.reduced));
  for (size_t m = 0; m < members_.size(); ++m) {
    torch::Tensor& grad = members_[m].tensor.mutable_grad();
    if (!grad.defined()) continue;
    if (grad.sizes() != torch::IntArrayRef(members_[m].shape)) {
      std::ostringstream text;
      text << RankName(route_) << ": the gradient of parameter '" << members_[m].name << "' is "
           << grad.sizes() << " and not " << torch::IntArrayRef(members_[m].shape)
           << ": it was used outside its unit";
      return InvalidArgumentError(text.str());
    }
    route_.parts.stream->Uses(grad);
    MemberOf(*whole, m).copy_(grad);
    grad = torch::Tensor();
  }
  return OkStatus();
}

Status FlatParameter::StartReduce() {
  const torch::NoGradGuard no_grad;
  const RankRoute& ranks = route_.parts;
  if (const auto current = ranks.stream->Current()) ranks.stream->WaitFor(*current);
  const DeviceStream::Scope on(*ranks.stream);
  torch::Tensor whole;
  const Status packed = PackGradients(&whole);
  if (!packed.ok()) return packed;
  // The average is over all ranks: the replicas only add up.
  const int replicas = route_.replicas.alone() ? 1 : route_.replicas.host->size();
  if (ranks.alone()) {
    if (replicas > 1) whole.mul_(1.0 / replicas);
    reductions_.push_back({torch::Tensor(), whole});
    return OkStatus();
  }
  if (through_host(ranks)) whole = whole.to(torch::kCPU, ReducedType(types_.reduced));
  const cadre::Reduction average = AverageOf(whole, ranks.host->size() * replicas);
  torch::Tensor own = torch::empty({count_ / ranks.host->size()}, whole.options());
  std::shared_ptr<Work> work =
      ranks.communicator().ReduceScatter(BufferOfFlat(whole), BufferOfFlat(own), average);
  if (ranks.device != nullptr) {
    route_.under_way->push_back(std::exchange(work, nullptr));
    // Freed memory is not reused before the stream has reached this point.
    whole = torch::Tensor();
  }
  reductions_.push_back({std::move(whole), std::move(own), std::move(work)});
  return OkStatus();
}

bool FlatParameter::waits_before_across() const {
  const bool has_work = !route_.parts.alone() && route_.parts.device == nullptr;
  return has_work || (!route_.replicas.alone() && through_host(route_.replicas));
}

Status FlatParameter::ReduceAcross() {
  const torch::NoGradGuard no_grad;
  Reduction reduction = std::move(reductions_.front());
  reductions_.pop_front();
  if (reduction.work != nullptr) {
    const Status status = Await(route_.parts, std::exchange(reduction.work, nullptr));
    if (!status.ok()) return status;
    reduction.whole = torch::Tensor();
  }
  const RankRoute& ranks = route_.replicas;
  torch::Tensor& own = reduction.own;
  if (!ranks.alone()) {
    DevicePoint reduced = route_.parts.stream->Here();
    const DeviceStream::Scope on(*ranks.stream);
    if (const auto stream = ranks.stream->Current()) reduced.Block(*stream);
    if (!own.device().is_cpu()) ranks.stream->Uses(own);
    own = through_host(ranks) ? own.to(torch::kCPU, ReducedType(own.scalar_type()))
                              : own.to(flat_.device());
    reduction.work = ranks.communicator().AllReduce(BufferOfFlat(own), ReduceOp::kSum);
    if (ranks.device != nullptr) {
      route_.under_way->push_back(std::exchange(reduction.work, nullptr));
    }
  }
  if (offloads() && !own.device().is_cpu()) {
    // The copy runs beside the backward pass, and then the device memory is free again.
    const DeviceStream::Scope on(last_stream());
    const torch::Tensor there = EmptyPinned(own.device(), own.sizes(), types_.kept);
    own = there.copy_(own.to(types_.kept), /*non_blocking=*/true);
    reduction.offloading = true;
  }
  across_.push_back(std::move(reduction));
  return OkStatus();
}

Status FlatParameter::FinishReduce() {
  const torch::NoGradGuard no_grad;
  Reduction reduction = std::move(across_.front());
  across_.pop_front();
  if (reduction.work != nullptr) {
    const Status status = Await(route_.replicas, reduction.work);
    if (!status.ok()) return status;
  }
  const DeviceStream& stream = last_stream();
  {
    const DeviceStream::Scope on(stream);
    reduction.own = reduction.own.to(shard_.device(), shard_.scalar_type());
  }
  if (reduction.offloading) stream.Synchronize();
  if (!offloads()) {
    // The optimizer's stream uses memory that this stream allocated.
    stream.CurrentWaits();
    stream.CurrentUses(reduction.own);
  }
  torch::Tensor& grad = shard_.mutable_grad();
  if (grad.defined()) {
    grad.add_(reduction.own);
  } else {
    grad = std::move(reduction.own);
  }
  return OkStatus();
}

Status FlatParameter::GatherOnHost(const torch::Tensor& part, torch::Tensor* whole) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor mine = part.detach().cpu().contiguous();
  *whole = torch::empty({count_}, mine.options().requires_grad(false));
  Communicator& host = *route_.parts.host;
  return WaitOrAbort(host, host.AllGather(BufferOfFlat(mine), BufferOfFlat(*whole)),
                     route_.timeout);
}

}  // namespace cadre::nn
