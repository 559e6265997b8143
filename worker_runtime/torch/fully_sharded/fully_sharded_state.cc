// The whole state of a model whose parameters are sharded.
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "cadre/same_options.h"
#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded/fully_sharded_parts.h"
#include "cadre/torch/guarded.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

// By the parameter's implementation: one that is registered twice is one.
using Values = std::map<const void*, torch::Tensor>;

// As torch::nn::Module::save(), with other values for the parameters.
void Write(const torch::nn::Module& module, const Values& values,
           torch::serialize::OutputArchive& archive) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    const auto value = values.find(parameter.value().unsafeGetTensorImpl());
    archive.write(parameter.key(), value == values.end() ? parameter.value() : value->second);
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    archive.write(buffer.key(), buffer.value().cpu(), /*is_buffer=*/true);
  }
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    torch::serialize::OutputArchive part(archive.compilation_unit());
    Write(*child.value(), values, part);
    archive.write(child.key(), part);
  }
}

using Visit = std::function<Status(const std::string& name, const torch::Tensor& ours,
                                   const torch::Tensor& saved, bool is_buffer)>;

// Calls `visit` with each parameter and buffer and what the archive has for it, which may be
// undefined.
Status Read(const torch::nn::Module& module, const std::string& prefix,
            torch::serialize::InputArchive& archive, const Visit& visit) {
  const auto read = [&](const auto& list, bool is_buffer) -> Status {
    for (const auto& item : list) {
      if (!item.value().defined()) continue;
      torch::Tensor saved;
      if (!archive.try_read(item.key(), saved, is_buffer)) saved = torch::Tensor();
      CADRE_RETURN_IF_ERROR(visit(prefix + item.key(), item.value(), saved, is_buffer));
    }
    return OkStatus();
  };
  CADRE_RETURN_IF_ERROR(read(module.named_parameters(/*recurse=*/false), false));
  CADRE_RETURN_IF_ERROR(read(module.named_buffers(/*recurse=*/false), true));
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    torch::serialize::InputArchive part;
    // Of an empty one every tensor is missing.
    (void)archive.try_read(child.key(), part);
    CADRE_RETURN_IF_ERROR(Read(*child.value(), prefix + child.key() + ".", part, visit));
  }
  return OkStatus();
}

}  // namespace

Status FullyShardedParts::CheckRecipient(int recipient) const {
  CADRE_RETURN_IF_ERROR(CheckSameOptions(communicator_,
                                         {{"recipient of the state", std::to_string(recipient)}},
                                         units_.route().timeout));
  if (recipient >= 0 && recipient < communicator_.size()) return OkStatus();
  return InvalidArgumentError("a state for rank " + std::to_string(recipient) + " of " +
                              std::to_string(communicator_.size()));
}

Status FullyShardedParts::SaveState(torch::serialize::OutputArchive& archive, int recipient) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  CADRE_RETURN_IF_ERROR(CheckRecipient(recipient));
  if (!units_.saves_state()) return OkStatus();
  return units_.Fail(Guarded("state of a sharded model", [&]() -> Status {
    Values values;
    for (FlatParameter* const flat : flats_) {
      torch::Tensor whole;
      CADRE_RETURN_IF_ERROR(flat->GatherOnHost(flat->shard(), &whole));
      if (communicator_.rank() != recipient) continue;
      for (size_t m = 0; m < flat->members().size(); ++m) {
        const torch::Tensor& parameter = flat->members()[m].tensor;
        torch::Tensor value = flat->MemberOf(whole, m).clone();
        value.set_requires_grad(parameter.requires_grad());
        values[parameter.unsafeGetTensorImpl()] = std::move(value);
      }
    }
    if (communicator_.rank() == recipient) Write(*module_, values, archive);
    return OkStatus();
  }));
}

Status FullyShardedParts::LoadState(torch::serialize::InputArchive& archive) {
  CADRE_RETURN_IF_ERROR(units_.failure());
  const torch::NoGradGuard no_grad;
  std::map<const void*, std::vector<int64_t>> shapes;
  for (const FlatParameter* const flat : flats_) {
    for (const FlatMember& member : flat->members()) {
      shapes[member.tensor.unsafeGetTensorImpl()] = member.shape;
    }
  }
  Values values;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;
  const auto check = [&](const std::string& name, const torch::Tensor& ours,
                         const torch::Tensor& saved, bool is_buffer) -> Status {
    const auto shape = shapes.find(ours.unsafeGetTensorImpl());
    const torch::IntArrayRef wanted =
        shape == shapes.end() ? ours.sizes() : torch::IntArrayRef(shape->second);
    if (!saved.defined() || saved.sizes() != wanted) {
      std::ostringstream text;
      text << units_.Mine() << "the state is of another model: '" << name << "' is " << wanted
           << " in this one, and ";
      if (saved.defined()) {
        text << saved.sizes() << " there";
      } else {
        text << "missing there";
      }
      return InvalidArgumentError(text.str());
    }
    if (is_buffer) {
      buffers.emplace_back(ours, saved);
    } else {
      values[ours.unsafeGetTensorImpl()] = saved.detach();
    }
    return OkStatus();
  };
  const Status read =
      Guarded("state of a sharded model", [&] { return Read(*module_, "", archive, check); });
  if (read.code() == StatusCode::kInternal) {
    return InvalidArgumentError(units_.Mine() + read.message());
  }
  CADRE_RETURN_IF_ERROR(read);
  CADRE_RETURN_IF_ERROR(units_.ReleaseAll(/*keep=*/false));
  return units_.Fail(Guarded("state of a sharded model", [&] {
    for (auto& [ours, saved] : buffers) ours.copy_(saved);
    for (const FlatParameter* const flat : flats_) {
      torch::Tensor whole =
          torch::zeros({flat->count()}, torch::dtype(flat->shard().scalar_type()));
      for (size_t m = 0; m < flat->members().size(); ++m) {
        const void* const parameter = flat->members()[m].tensor.unsafeGetTensorImpl();
        flat->MemberOf(whole, m).copy_(values.at(parameter));
      }
      flat->shard().detach().copy_(flat->OwnPartOf(whole));
    }
    return OkStatus();
  }));
}

}  // namespace cadre::nn
