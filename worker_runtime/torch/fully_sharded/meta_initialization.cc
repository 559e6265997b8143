#include "cadre/torch/fully_sharded/meta_initialization.h"

#include <limits>
#include <utility>

#include "cadre/status_macros.h"
#include "cadre/torch/guarded.h"
#include "torch/utils.h"

namespace cadre::nn {

MetaInitialization::MetaInitialization(std::string who, const torch::Device& device,
                                       InitializeModule initialize, FromFirstRank from_first_rank)
    : who_(std::move(who)),
      device_(device),
      initialize_(std::move(initialize)),
      from_first_rank_(std::move(from_first_rank)) {}

void MetaInitialization::AddUnit(const torch::nn::Module& module,
                                 const std::vector<FlatParameter*>& flats) {
  units_[&module] = flats;
}

Status MetaInitialization::Visit(torch::nn::Module& module, const std::string& name) {
  // One that is in two places is made once.
  if (!visited_.insert(&module).second) return OkStatus();
  const auto unit = units_.find(&module);
  if (unit != units_.end()) {
    for (const FlatParameter* const flat : unit->second) {
      for (const FlatMember& member : flat->members()) GiveMemory(member.tensor, device_);
    }
  }
  for (const auto& child : module.named_children()) {
    CADRE_RETURN_IF_ERROR(
        Visit(*child.value(), name.empty() ? child.key() : name + "." + child.key()));
  }
  CADRE_RETURN_IF_ERROR(InitializeOwn(module, name));
  return unit == units_.end() ? OkStatus() : Keep(unit->second);
}

Status MetaInitialization::InitializeOwn(torch::nn::Module& module, const std::string& name) {
  const torch::NoGradGuard no_grad;
  bool has_own = false;
  // What another module has initialized and this one shares, as tied weights are.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> shared;
  for (const torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (!parameter.defined()) continue;
    if (initialized_.insert(parameter.unsafeGetTensorImpl()).second) {
      has_own = true;
      if (parameter.is_meta()) GiveMemory(parameter, device_);
      // So that what is left out shows.
      if (parameter.is_floating_point()) parameter.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      shared.emplace_back(parameter, parameter.clone());
    }
  }
  for (const torch::Tensor& buffer : module.buffers(/*recurse=*/false)) {
    if (!buffer.defined() || buffer.device() == device_) continue;
    const torch::Tensor before = buffer.detach();
    GiveMemory(buffer, device_);
    if (before.is_meta()) {
      has_own = true;
    } else {
      torch::Tensor(buffer).copy_(before);
    }
  }
  if (!has_own) return OkStatus();
  const std::string which =
      (name.empty() ? "the model itself" : "'" + name + "'") + ", a " + module.name();
  CADRE_RETURN_IF_ERROR(Guarded(who_ + "initialization of " + which, [&] {
    if (initialize_(module)) return OkStatus();
    return InvalidArgumentError(who_ +
                                "the model is on the meta device, and its `initialize` does not "
                                "know which values the own parameters and buffers of " +
                                which + ", begin with");
  }));
  for (auto& [parameter, value] : shared) parameter.copy_(value);
  return OkStatus();
}

Status MetaInitialization::Keep(const std::vector<FlatParameter*>& flats) {
  for (FlatParameter* const flat : flats) {
    CADRE_RETURN_IF_ERROR(from_first_rank_(flat->members()));
    for (size_t m = 0; m < flat->members().size(); ++m) flat->Take(m);
  }
  return OkStatus();
}

}  // namespace cadre::nn
