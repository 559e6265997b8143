#include "cadre/torch/sharded_checkpoint/optimizer_head.h"

#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/sharded_checkpoint/shard_names.h"
#include "cadre/torch/sharded_checkpoint/shard_reading.h"
#include "torch/serialize.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

std::map<std::string, torch::Tensor> ParametersByName(const NamedGroups& groups) {
  std::map<std::string, torch::Tensor> parameters;
  for (const auto& group : groups) parameters.insert(group.begin(), group.end());
  return parameters;
}

Status ReadHead(const SavedShards& saved, const std::string& name, const NamedGroups& groups,
                torch::optim::Optimizer& optimizer, HollowStates* states) {
  std::string head;
  CADRE_RETURN_IF_ERROR(ReadText(saved, name, &head));
  torch::serialize::InputArchive archive;
  archive.load_from(head.data(), head.size(), torch::Device(torch::kCPU));
  const std::vector<std::string> names = GroupNames(groups);
  CADRE_RETURN_IF_ERROR(CheckWhose(archive, KindOf(optimizer), names));
  {
    const OtherParameters over_all(optimizer, GroupParameters(groups));
    optimizer.load(archive);
  }
  const auto parameters = ParametersByName(groups);
  torch::IValue value;
  archive.read(kLikeKey, value);
  const auto like = value.toListRef();
  for (size_t i = 0; i < names.size() && i < like.size(); ++i) {
    const auto parameter = parameters.find(like[i].toStringRef());
    if (parameter == parameters.end()) continue;
    const auto state = optimizer.state().find(StateKey(parameter->second));
    if (state != optimizer.state().end()) (*states)[names[i]] = state->second->clone();
  }
  return OkStatus();
}

}  // namespace

Status VisibleTensors(const torch::optim::Optimizer& optimizer,
                      torch::optim::OptimizerParamState& state,
                      std::vector<torch::Tensor*>* tensors) {
  if (TensorsOf(state, tensors)) return OkStatus();
  return UnimplementedError("the state of " + KindOf(optimizer) + " does not show its tensors");
}

std::unique_ptr<torch::optim::OptimizerParamState> Hollow(
    const torch::optim::OptimizerParamState& state) {
  auto hollow = state.clone();
  std::vector<torch::Tensor*> tensors;
  (void)TensorsOf(*hollow, &tensors);
  for (torch::Tensor* const tensor : tensors) {
    if (tensor->defined()) *tensor = torch::empty({0}, torch::dtype(tensor->scalar_type()));
  }
  return hollow;
}

std::string WriteHead(torch::optim::Optimizer& optimizer, const NamedGroups& groups,
                      const HollowStates& states, const std::map<std::string, std::string>& like) {
  const auto parameters = ParametersByName(groups);
  OptimizerStates by_parameter;
  for (const auto& [name, state] : states) {
    by_parameter[StateKey(parameters.at(name))] = state->clone();
  }
  c10::List<std::string> list;
  const std::vector<std::string> names = GroupNames(groups);
  for (const std::string& name : names) {
    const auto found = like.find(name);
    list.push_back(found == like.end() ? std::string() : found->second);
  }
  const StateAside aside(optimizer);
  optimizer.state() = std::move(by_parameter);
  const OtherParameters over_all(optimizer, GroupParameters(groups));
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  WriteWhose(archive, KindOf(optimizer), names);
  archive.write(kLikeKey, torch::IValue(list));
  std::string bytes;
  archive.save_to([&bytes](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  return bytes;
}

Status ReadHeads(const SavedShards& saved, const NamedGroups& groups,
                 torch::optim::Optimizer& optimizer, HollowStates* states) {
  bool found = false;
  for (const std::string& name : saved.names()) {
    if (name != kHeadName && name.rfind(kRankHeadPrefix, 0) != 0) continue;
    found = true;
    CADRE_RETURN_IF_ERROR(ReadHead(saved, name, groups, optimizer, states));
  }
  return found ? OkStatus() : InvalidArgumentError("there is no optimizer in it");
}

}  // namespace cadre::nn
