#include "cadre/torch/deterministic_reduction.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cadre/parameter.h"
#include "cadre/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"
#include "worker_runtime/torch/guarded.h"

namespace cadre::nn {
namespace {

constexpr char kReduction[] = "deterministic reduction";

// How many elements of one rank's sum are sent at once; this bounds the memory for all ranks' sums.
constexpr int64_t kElementsAtOnce = 1 << 20;

// For ranks that have nothing to add.
struct Nothing {};
constexpr auto kAddNothing = [](Nothing, Nothing) {};

void AddFlats(std::vector<torch::Tensor>& left, const std::vector<torch::Tensor>& right) {
  for (size_t i = 0; i < left.size(); ++i) left[i].add_(right[i]);
}

}  // namespace

DeterministicReduction::DeterministicReduction(Communicator& communicator, NamedTensors trained,
                                               const DeterministicReductionOptions& options)
    : communicator_(communicator),
      trained_(std::move(trained)),
      options_(options),
      mine_(PartsOf(communicator.rank(), communicator.size(), options.parts)),
      sums_(options.parts),
      used_(trained_.tensors.size()) {
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    const torch::Tensor& parameter = trained_.tensors[i];
    const auto of = parameter.options().dtype(ReducedType(parameter.scalar_type()));
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& known) {
      return known.options.device() == of.device() && known.options.dtype() == of.dtype();
    });
    if (group == groups_.end()) {
      group = groups_.insert(groups_.end(), Group{{}, 0, of.requires_grad(false)});
    }
    group->parameters.push_back(i);
    group->elements += parameter.numel();
  }
  for (int rank = 0; rank < communicator.size(); ++rank) {
    TreeSum<Nothing> tree(options.parts);
    const PartRange parts = PartsOf(rank, communicator.size(), options.parts);
    for (int part = parts.begin; part < parts.end; ++part) {
      tree.Push({part, part + 1}, Nothing(), kAddNothing);
    }
    for (const auto& node : tree.nodes()) nodes_.push_back(node.range);
    nodes_of_rank_.push_back(tree.nodes().size());
  }
}

Result<std::unique_ptr<DeterministicReduction>> DeterministicReduction::Create(
    const torch::nn::Module& module, Communicator& communicator,
    DeterministicReductionOptions options) {
  CADRE_ASSIGN_OR_RETURN(NamedTensors trained, TrainedParameters(module));
  std::unique_ptr<DeterministicReduction> result(
      new DeterministicReduction(communicator, std::move(trained), options));
  CADRE_RETURN_IF_ERROR(Guarded(kReduction, [&] { return result->Begin(module); }));
  return result;
}

Status DeterministicReduction::CheckOptions() {
  std::vector<int32_t> parts(static_cast<size_t>(communicator_.size()));
  int32_t own = options_.parts;
  CADRE_RETURN_IF_ERROR(
      WaitOrAbort(communicator_,
                  communicator_.AllGather({&own, 1, DataType::kInt32},
                                          {parts.data(), parts.size(), DataType::kInt32}),
                  options_.timeout));
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank] == parts[0]) continue;
    return InvalidArgumentError(std::string(kReduction) + ": rank " + std::to_string(rank) +
                                " cuts the batch into " + std::to_string(parts[rank]) +
                                " parts, and rank 0 into " + std::to_string(parts[0]));
  }
  if (options_.parts >= communicator_.size()) return OkStatus();
  return InvalidArgumentError(std::string(kReduction) + ": " + std::to_string(options_.parts) +
                              " parts are not enough for " + std::to_string(communicator_.size()) +
                              " ranks; each needs one");
}

Status DeterministicReduction::Begin(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  CADRE_RETURN_IF_ERROR(CheckOptions());
  CADRE_RETURN_IF_ERROR(CheckSameParameters(communicator_, trained_.parameters, options_.timeout));
  if (!options_.broadcast) return OkStatus();
  std::vector<RootedTensor> tensors;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) tensors.push_back({item.key(), item.value(), 0});
  }
  CADRE_RETURN_IF_ERROR(BroadcastTensors(communicator_, tensors, options_.timeout));
  return BroadcastBuffers(communicator_, module, options_.timeout);
}

Status DeterministicReduction::Take() {
  if (taken_ == mine_.size()) {
    return FailedPreconditionError(std::string(kReduction) + ": rank " +
                                   std::to_string(communicator_.rank()) + " has " +
                                   std::to_string(mine_.size()) +
                                   " parts of a batch, and has given all of them; call Finish()");
  }
  return Guarded(kReduction, [this] { return TakeAll(); });
}

Status DeterministicReduction::TakeAll() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    const torch::Tensor& grad = trained_.tensors[i].grad();
    if (!grad.defined() || grad.layout() == torch::kStrided) continue;
    return InvalidArgumentError(std::string(kReduction) + ": the gradient of '" +
                                trained_.parameters[i].name + "' is sparse");
  }
  Flats part;
  for (const Group& group : groups_) {
    torch::Tensor flat = torch::zeros({group.elements}, group.options);
    int64_t offset = 0;
    for (const size_t i : group.parameters) {
      torch::Tensor parameter = trained_.tensors[i];
      const int64_t count = parameter.numel();
      if (parameter.grad().defined()) {
        // The gradient is added rather than copied, so that no zero is negative: the result must
        // not depend on whether a part contributed zeros.
        flat.narrow(0, offset, count).add_(parameter.grad().reshape({count}));
        used_[i] = 1;
        parameter.mutable_grad().reset();
      }
      offset += count;
    }
    part.push_back(std::move(flat));
  }
  const int number = mine_.begin + taken_++;
  sums_.Push({number, number + 1}, std::move(part), AddFlats);
  return OkStatus();
}

Status DeterministicReduction::Finish() {
  if (taken_ != mine_.size()) {
    return FailedPreconditionError(
        std::string(kReduction) + ": rank " + std::to_string(communicator_.rank()) + " has " +
        std::to_string(mine_.size()) + " parts of a batch, and gave " + std::to_string(taken_));
  }
  const Status finished = Guarded(kReduction, [this] { return FinishAll(); });
  // The other ranks wait for this rank's sums.
  if (!finished.ok()) communicator_.Abort();
  return finished;
}

Status DeterministicReduction::FinishAll() {
  const torch::NoGradGuard no_grad;
  if (!used_.empty()) {
    CADRE_RETURN_IF_ERROR(WaitOrAbort(
        communicator_,
        communicator_.AllReduce({used_.data(), used_.size(), DataType::kInt32}, ReduceOp::kMax),
        options_.timeout));
  }
  averages_.clear();
  for (size_t g = 0; g < groups_.size(); ++g) {
    averages_.push_back(torch::empty({groups_[g].elements}, groups_[g].options));
    for (int64_t begin = 0; begin < groups_[g].elements; begin += kElementsAtOnce) {
      CADRE_RETURN_IF_ERROR(
          Combine(g, begin, std::min(begin + kElementsAtOnce, groups_[g].elements)));
    }
    averages_[g].div_(options_.parts);
  }
  GiveBack();
  sums_.Clear();
  taken_ = 0;
  std::fill(used_.begin(), used_.end(), 0);
  return OkStatus();
}

Status DeterministicReduction::Combine(size_t group, int64_t begin, int64_t end) {
  const int64_t size = end - begin;
  std::vector<torch::Tensor> own;
  for (const auto& node : sums_.nodes()) {
    own.push_back(node.value[group].narrow(0, begin, size).cpu());
  }
  const torch::Tensor input = torch::cat(own);
  torch::Tensor all = torch::empty({static_cast<int64_t>(nodes_.size()) * size}, input.options());
  std::vector<size_t> counts;
  for (const size_t nodes : nodes_of_rank_) counts.push_back(nodes * static_cast<size_t>(size));
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      communicator_, communicator_.AllGatherVarying(BufferOfFlat(input), BufferOfFlat(all), counts),
      options_.timeout));
  // The sums are added on the device that made them: one kind of processor makes all the additions.
  const torch::Tensor there = all.to(groups_[group].options.device());
  TreeSum<torch::Tensor> tree(options_.parts);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    tree.Push(nodes_[i], there.narrow(0, static_cast<int64_t>(i) * size, size),
              [](torch::Tensor& left, const torch::Tensor& right) { left.add_(right); });
  }
  averages_[group].narrow(0, begin, size).copy_(tree.nodes().front().value);
  return OkStatus();
}

void DeterministicReduction::GiveBack() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    int64_t offset = 0;
    for (const size_t i : groups_[g].parameters) {
      torch::Tensor parameter = trained_.tensors[i];
      const int64_t count = parameter.numel();
      if (used_[i] != 0) {
        // The average gets memory of its own, because an optimizer may detach it.
        parameter.mutable_grad() =
            averages_[g]
                .narrow(0, offset, count)
                .view(parameter.sizes())
                .to(parameter.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
      }
      offset += count;
    }
  }
  averages_.clear();
}

}  // namespace cadre::nn
