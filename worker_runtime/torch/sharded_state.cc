#include <string>
#include <utility>
#include <vector>

#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/optimizer_state.h"
#include "cadre/torch/sharded_optimizer.h"
#include "cadre/wait_or_abort.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

constexpr int kStateTag = 0x05500;

void LoadPart(torch::optim::Optimizer& optimizer, const std::string& part) {
  torch::serialize::InputArchive archive;
  archive.load_from(part.data(), part.size(), torch::Device(torch::kCPU));
  optimizer.load(archive);
}

}  // namespace

bool ShardedOptimizer::HasState(const Place& place) const {
  const auto& state = optimizer_.state();
  return state.find(StateKey(place.tensor)) != state.end();
}

void ShardedOptimizer::DropOthers() {
  for (const Place& place : places_) {
    if (!IsMine(place)) optimizer_.state().erase(StateKey(place.tensor));
  }
}

std::vector<std::string> ShardedOptimizer::Names() const {
  std::vector<std::string> names;
  for (const Place& place : places_) names.push_back(place.name);
  return names;
}

size_t ShardedOptimizer::state_bytes() const {
  size_t bytes = 0;
  for (const auto& item : optimizer_.state()) {
    std::vector<torch::Tensor*> tensors;
    (void)TensorsOf(*item.second, &tensors);
    for (const torch::Tensor* const tensor : tensors) {
      if (tensor->defined()) bytes += tensor->nbytes();
    }
  }
  return bytes;
}

std::string ShardedOptimizer::OwnState() {
  StateAside aside(optimizer_);
  aside.LendToHost();
  torch::serialize::OutputArchive archive;
  optimizer_.save(archive);
  std::string bytes;
  archive.save_to([&bytes](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  return bytes;
}

Status ShardedOptimizer::SaveState(torch::serialize::OutputArchive& archive, int recipient) {
  CADRE_RETURN_IF_ERROR(failure_);
  CADRE_RETURN_IF_ERROR(CheckSameOptions(
      communicator_, {{"recipient of the state", std::to_string(recipient)}}, options_.timeout));
  if (recipient < 0 || recipient >= communicator_.size()) {
    return InvalidArgumentError("SaveState() on rank " + std::to_string(recipient) + " of " +
                                std::to_string(communicator_.size()));
  }
  return Fail(Guarded("state of the sharded optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckUnchanged());
    const bool receives = communicator_.rank() == recipient;
    std::string mine = receives ? "" : OwnState();
    struct Part {
      int64_t bytes = 0;
      int64_t states = 0;
    };
    const Part part = {static_cast<int64_t>(mine.size()),
                       static_cast<int64_t>(optimizer_.state().size())};
    std::vector<Part> parts(static_cast<size_t>(communicator_.size()));
    CADRE_RETURN_IF_ERROR(
        WaitOrAbort(communicator_,
                    communicator_.AllGather({const_cast<Part*>(&part), 2, DataType::kInt64},
                                            {parts.data(), 2 * parts.size(), DataType::kInt64}),
                    options_.timeout));
    if (!receives) {
      const Buffer buffer = {mine.data(), mine.size(), DataType::kUint8};
      return WaitOrAbort(communicator_, communicator_.Send(buffer, recipient, kStateTag),
                         options_.timeout);
    }
    std::vector<size_t> sizes;
    size_t states = 0;
    for (const Part& one : parts) {
      sizes.push_back(static_cast<size_t>(one.bytes));
      states += static_cast<size_t>(one.states);
    }
    return Consolidate(sizes, states, archive);
  }));
}

// One part after the other, so that only one is here twice.
Status ShardedOptimizer::Consolidate(const std::vector<size_t>& sizes, size_t states,
                                     torch::serialize::OutputArchive& archive) {
  StateAside aside(optimizer_);
  aside.LendToHost();
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank == communicator_.rank()) continue;
    std::string part(sizes[static_cast<size_t>(rank)], '\0');
    const Buffer buffer = {part.data(), part.size(), DataType::kUint8};
    CADRE_RETURN_IF_ERROR(WaitOrAbort(communicator_, communicator_.Receive(buffer, rank, kStateTag),
                                      options_.timeout));
    LoadPart(optimizer_, part);
  }
  if (optimizer_.state().size() != states) {
    return UnimplementedError(kind_ + "::save() and load() do not keep its state: of " +
                              std::to_string(states) + " parameters' states " +
                              std::to_string(optimizer_.state().size()) + " came through");
  }
  optimizer_.save(archive);
  WriteWhose(archive, kind_, Names());
  return OkStatus();
}

// Of all parameters, so that all ranks come to the same.
Status ShardedOptimizer::CheckStates() const {
  for (const Place& place : places_) {
    const auto state = optimizer_.state().find(StateKey(place.tensor));
    if (state == optimizer_.state().end()) continue;
    CADRE_RETURN_IF_ERROR(CheckShapes(*state->second, place.name, place.tensor.sizes()));
  }
  return OkStatus();
}

Status ShardedOptimizer::LoadState(torch::serialize::InputArchive& archive) {
  CADRE_RETURN_IF_ERROR(failure_);
  StateAside aside(optimizer_);
  const Status loaded = Guarded("state of the sharded optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckWhose(archive, kind_, Names()));
    optimizer_.load(archive);
    CADRE_RETURN_IF_ERROR(CheckStates());
    DropOthers();
    for (const Place& place : places_) {
      if (HasState(place)) {
        MoveTo(*optimizer_.state()[StateKey(place.tensor)], place.tensor.device());
      }
    }
    return OkStatus();
  });
  // Of libtorch's exceptions, too.
  if (!loaded.ok()) return InvalidArgumentError(Mine() + loaded.message());
  aside.Keep();
  return OkStatus();
}

}  // namespace cadre::nn
