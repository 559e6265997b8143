#include "synchronization.h"

#include <algorithm>
#include <cstring>

#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/status_macros.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "torch/types.h"

namespace cadre::mnist {
namespace {

// SINGA's, for both sparse ways: a twentieth of the elements, or those from 0.05.
constexpr double kSparsity = 0.05;
// In elements. The default would make one group of this small network.
constexpr size_t kPartialThreshold = 10000;

constexpr char kSizesKey[] = "synchronization_sizes";
constexpr char kStatesKey[] = "synchronization_states";

std::shared_ptr<CommunicationHook> Sparse(hooks::SparseOptions::Select select) {
  return std::make_shared<hooks::SparseHook>(
      hooks::SparseOptions{select, kSparsity, /*residual=*/true});
}

// Row r is rank r's.
Result<torch::Tensor> Gather(Communicator& communicator, const torch::Tensor& mine,
                             std::chrono::nanoseconds timeout) {
  const torch::Tensor all = torch::zeros({communicator.size(), mine.numel()}, mine.scalar_type());
  CADRE_RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({mine.data_ptr(), mine.nbytes(), DataType::kUint8},
                                         {all.data_ptr(), all.nbytes(), DataType::kUint8}),
                  timeout));
  return all;
}

}  // namespace

Result<Synchronization> Synchronization::Create(const std::string& way,
                                                const torch::nn::Module& module) {
  Synchronization result;
  if (way == "fp16") {
    result.hook_ = hooks::Fp16Hook();
  } else if (way == "bf16") {
    result.hook_ = hooks::Bf16Hook();
  } else if (way == "topk") {
    result.hook_ = Sparse(hooks::SparseOptions::Select::kTopK);
  } else if (way == "threshold") {
    result.hook_ = Sparse(hooks::SparseOptions::Select::kThreshold);
  } else if (way == "partial") {
    CADRE_ASSIGN_OR_RETURN(const nn::NamedTensors trained, nn::TrainedParameters(module));
    CADRE_ASSIGN_OR_RETURN(result.partial_,
                           hooks::PartialHook::Create(trained.parameters, kPartialThreshold));
    result.hook_ = result.partial_;
  } else if (way != "fp32") {
    return InvalidArgumentError("there is no way to synchronize called \"" + way +
                                "\"; expected fp32, fp16, bf16, partial, topk or threshold");
  }
  return result;
}

Status Synchronization::AfterStep(Communicator& communicator, std::chrono::nanoseconds timeout) {
  if (partial_ == nullptr) return OkStatus();
  return partial_->AverageNextGroup(communicator, timeout);
}

Status Synchronization::MakeReplicasEqual(Communicator& communicator,
                                          std::chrono::nanoseconds timeout) {
  if (partial_ == nullptr) return OkStatus();
  return partial_->AverageAll(communicator, timeout);
}

Status Synchronization::Save(Communicator& communicator, torch::serialize::OutputArchive& archive,
                             std::chrono::nanoseconds timeout) const {
  if (hook_ == nullptr) return OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::string state, hook_->SaveState());
  const torch::Tensor size = torch::full({1}, static_cast<int64_t>(state.size()), torch::kInt64);
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor sizes, Gather(communicator, size, timeout));
  const torch::Tensor mine = torch::zeros({sizes.max().item<int64_t>()}, torch::kUInt8);
  std::memcpy(mine.data_ptr(), state.data(), state.size());
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor states, Gather(communicator, mine, timeout));
  archive.write(kSizesKey, sizes);
  archive.write(kStatesKey, states);
  return OkStatus();
}

Status Synchronization::Load(int rank, torch::serialize::InputArchive& archive) {
  torch::Tensor sizes, states;
  if (hook_ == nullptr || !archive.try_read(kSizesKey, sizes)) return OkStatus();
  archive.read(kStatesKey, states);
  if (rank >= sizes.size(0)) return OkStatus();
  const torch::Tensor mine = states[rank].contiguous();
  const auto size = std::min<int64_t>(sizes[rank].item<int64_t>(), mine.numel());
  return hook_->LoadState({static_cast<const char*>(mine.data_ptr()), static_cast<size_t>(size)});
}

}  // namespace cadre::mnist
