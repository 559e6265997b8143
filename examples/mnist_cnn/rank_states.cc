#include "rank_states.h"

#include <algorithm>
#include <cstring>

#include "cadre/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "torch/types.h"

namespace cadre::mnist {
namespace {

constexpr char kSizesKey[] = "synchronization_sizes";
constexpr char kStatesKey[] = "synchronization_states";

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

Status SaveRankStates(Communicator& communicator, const std::string& mine,
                      torch::serialize::OutputArchive& archive, std::chrono::nanoseconds timeout) {
  const torch::Tensor size = torch::full({1}, static_cast<int64_t>(mine.size()), torch::kInt64);
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor sizes, Gather(communicator, size, timeout));
  const torch::Tensor padded = torch::zeros({sizes.max().item<int64_t>()}, torch::kUInt8);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor states, Gather(communicator, padded, timeout));
  archive.write(kSizesKey, sizes);
  archive.write(kStatesKey, states);
  return OkStatus();
}

Result<std::string> LoadRankState(int rank, torch::serialize::InputArchive& archive) {
  torch::Tensor sizes, states;
  if (!archive.try_read(kSizesKey, sizes)) return std::string();
  archive.read(kStatesKey, states);
  if (rank >= sizes.size(0)) return std::string();
  const torch::Tensor mine = states[rank].cpu().contiguous();
  const auto size = std::min<int64_t>(sizes[rank].item<int64_t>(), mine.numel());
  return std::string(static_cast<const char*>(mine.data_ptr()), static_cast<size_t>(size));
}

}  // namespace cadre::mnist
