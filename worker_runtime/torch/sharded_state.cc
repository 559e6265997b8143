#include <algorithm>
#include <sstream>
#include <type_traits>
#include <utility>

#include "cadre/status_macros.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/sharded_optimizer.h"
#include "cadre/wait_or_abort.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/rmsprop.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

using torch::optim::OptimizerParamState;
using StateMap = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

// Beside what libtorch's load() reads.
constexpr char kNamesKey[] = "cadre_parameters";
constexpr char kOptimizerKey[] = "cadre_optimizer";
constexpr int kStateTag = 0x05500;

// Text until 2.x, a pointer since.
StateMap::key_type StateKey(const torch::Tensor& parameter) {
  StateMap::key_type key{};
  const auto set = [&parameter](auto& key) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(key)>>) {
      key = parameter.unsafeGetTensorImpl();
    } else {
      std::ostringstream text;
      text << parameter.unsafeGetTensorImpl();
      key = text.str();
    }
  };
  set(key);
  return key;
}

template <typename State, typename Visit, typename... Members>
bool VisitAs(OptimizerParamState& state, const Visit& visit, Members... members) {
  auto* const own = dynamic_cast<State*>(&state);
  if (own == nullptr) return false;
  (visit((own->*members)()), ...);
  return true;
}

template <typename State>
using TensorOf = torch::Tensor& (State::*)() noexcept;

// Calls `visit` with each tensor of a state of libtorch's own, defined or not. The states of other
// optimizers show nothing of what is in them.
template <typename Visit>
void VisitTensors(OptimizerParamState& state, const Visit& visit) {
  using namespace torch::optim;  // NOLINT: ten names.
  VisitAs<AdamParamState>(state, visit, TensorOf<AdamParamState>(&AdamParamState::exp_avg),
                          TensorOf<AdamParamState>(&AdamParamState::exp_avg_sq),
                          TensorOf<AdamParamState>(&AdamParamState::max_exp_avg_sq)) ||
      VisitAs<AdamWParamState>(state, visit, TensorOf<AdamWParamState>(&AdamWParamState::exp_avg),
                               TensorOf<AdamWParamState>(&AdamWParamState::exp_avg_sq),
                               TensorOf<AdamWParamState>(&AdamWParamState::max_exp_avg_sq)) ||
      VisitAs<SGDParamState>(state, visit,
                             TensorOf<SGDParamState>(&SGDParamState::momentum_buffer)) ||
      VisitAs<RMSpropParamState>(state, visit,
                                 TensorOf<RMSpropParamState>(&RMSpropParamState::square_avg),
                                 TensorOf<RMSpropParamState>(&RMSpropParamState::momentum_buffer),
                                 TensorOf<RMSpropParamState>(&RMSpropParamState::grad_avg)) ||
      VisitAs<AdagradParamState>(state, visit,
                                 TensorOf<AdagradParamState>(&AdagradParamState::sum));
}

void MoveTo(OptimizerParamState& state, torch::Device device) {
  VisitTensors(state, [&](torch::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.to(device);
  });
}

// Empties the optimizer's state, and gives it back what it had unless told to keep what came since;
// its options, too.
class StateAside {
 public:
  explicit StateAside(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
    std::swap(state_, optimizer_.state());
    for (const auto& group : optimizer_.param_groups()) {
      options_.push_back(group.has_options() ? group.options().clone() : nullptr);
    }
  }
  ~StateAside() {
    if (kept_) return;
    std::swap(state_, optimizer_.state());
    for (size_t g = 0; g < options_.size(); ++g) {
      if (options_[g] != nullptr) optimizer_.param_groups()[g].set_options(std::move(options_[g]));
    }
  }
  StateAside(const StateAside&) = delete;
  StateAside& operator=(const StateAside&) = delete;

  void Keep() { kept_ = true; }
  // The optimizer gets copies on the host; what is there already is not copied.
  void LendToHost() {
    for (const auto& [key, state] : state_) {
      auto copy = state->clone();
      MoveTo(*copy, torch::kCPU);
      optimizer_.state()[key] = std::move(copy);
    }
  }

 private:
  torch::optim::Optimizer& optimizer_;
  StateMap state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  bool kept_ = false;
};

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

size_t ShardedOptimizer::state_bytes() const {
  size_t bytes = 0;
  for (const auto& item : optimizer_.state()) {
    VisitTensors(*item.second, [&](torch::Tensor& tensor) {
      if (tensor.defined()) bytes += tensor.nbytes();
    });
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
  c10::List<std::string> names;
  for (const Place& place : places_) names.push_back(place.name);
  archive.write(kNamesKey, torch::IValue(names));
  archive.write(kOptimizerKey, torch::IValue(kind_));
  return OkStatus();
}

// By what an archive of SaveState() says beside the state.
Status ShardedOptimizer::CheckFits(torch::serialize::InputArchive& archive) const {
  torch::IValue value;
  if (archive.try_read(kOptimizerKey, value) && value.toStringRef() != kind_) {
    return InvalidArgumentError(Mine() + "the state is one of " + value.toStringRef() +
                                ", and the optimizer is " + kind_);
  }
  if (!archive.try_read(kNamesKey, value)) return OkStatus();
  const auto names = value.toListRef();
  for (size_t i = 0; i < std::min(names.size(), places_.size()); ++i) {
    if (names[i].toStringRef() == places_[i].name) continue;
    return InvalidArgumentError(Mine() + "the state is of another model: parameter " +
                                std::to_string(i) + " is '" + names[i].toStringRef() +
                                "' there, and '" + places_[i].name + "' in this optimizer");
  }
  if (names.size() == places_.size()) return OkStatus();
  const bool more = names.size() > places_.size();
  return InvalidArgumentError(Mine() + "the state is of another model: it has " +
                              std::to_string(names.size()) + " parameters, and this optimizer " +
                              std::to_string(places_.size()) + "; only " +
                              (more ? "the state has '" + names[places_.size()].toStringRef()
                                    : "the optimizer has '" + places_[names.size()].name) +
                              "'");
}

// Of all parameters, so that all ranks come to the same.
Status ShardedOptimizer::CheckShapes() const {
  for (const Place& place : places_) {
    const auto state = optimizer_.state().find(StateKey(place.tensor));
    if (state == optimizer_.state().end()) continue;
    Status status;
    VisitTensors(*state->second, [&](torch::Tensor& tensor) {
      if (!tensor.defined() || tensor.sizes() == place.tensor.sizes()) return;
      std::ostringstream text;
      text << Mine() << "the state is of another model: for parameter '" << place.name
           << "', which is " << place.tensor.sizes() << ", it has " << tensor.sizes();
      status.Update(InvalidArgumentError(text.str()));
    });
    CADRE_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

Status ShardedOptimizer::LoadState(torch::serialize::InputArchive& archive) {
  CADRE_RETURN_IF_ERROR(failure_);
  StateAside aside(optimizer_);
  const Status loaded = Guarded("state of the sharded optimizer", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(CheckFits(archive));
    optimizer_.load(archive);
    CADRE_RETURN_IF_ERROR(CheckShapes());
    DropOthers();
    for (const Place& place : places_) {
      if (HasState(place)) {
        MoveTo(*optimizer_.state()[StateKey(place.tensor)], place.tensor.device());
      }
    }
    return OkStatus();
  });
  if (loaded.code() == StatusCode::kInternal) {
    return InvalidArgumentError(Mine() + std::string(loaded.message()));
  }
  CADRE_RETURN_IF_ERROR(loaded);
  aside.Keep();
  return OkStatus();
}

}  // namespace cadre::nn
