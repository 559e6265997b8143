#include "cadre/torch/sharded_checkpoint/shard_reading.h"

#include <sstream>

#include "cadre/status_macros.h"
#include "cadre/torch/sharded_checkpoint/shard_names.h"
#include "torch/utils.h"

namespace cadre::nn {

Status CheckTensor(const SavedShards& saved, const std::string& name, const std::string& shown,
                   torch::ScalarType type, torch::IntArrayRef shape) {
  const ShardedTensor* const tensor = saved.Find(name);
  if (tensor == nullptr && c10::multiply_integers(shape) == 0) return OkStatus();
  if (tensor != nullptr && tensor->type == torch::toString(type) && tensor->shape == shape.vec()) {
    return OkStatus();
  }
  std::ostringstream text;
  text << "the state is of another model: " << shown << " is " << torch::toString(type) << " "
       << shape << " in this one, and ";
  if (tensor == nullptr) {
    text << "missing there";
  } else {
    text << tensor->type << " " << torch::IntArrayRef(tensor->shape) << " there";
  }
  return InvalidArgumentError(text.str());
}

Status ReadWhole(const SavedShards& saved, const std::string& name, const std::string& shown,
                 torch::ScalarType type, torch::IntArrayRef shape, torch::Tensor* read) {
  CADRE_RETURN_IF_ERROR(CheckTensor(saved, name, shown, type, shape));
  *read = torch::empty(shape, torch::dtype(type));
  return read->numel() == 0 ? OkStatus() : saved.Read(name, 0, read->numel(), read->data_ptr());
}

Status ReadText(const SavedShards& saved, const std::string& name, std::string* text) {
  const ShardedTensor* const tensor = saved.Find(name);
  // A text without letters has no elements.
  text->assign(tensor == nullptr ? 0 : static_cast<size_t>(tensor->shape.at(0)), '\0');
  if (text->empty()) return OkStatus();
  return saved.Read(name, 0, static_cast<int64_t>(text->size()), &(*text)[0]);
}

Status ReadBuffers(const SavedShards& saved, const torch::nn::Module& module, LoadedTensors* loaded,
                   std::set<std::string>* known) {
  for (const auto& buffer : module.named_buffers()) {
    const torch::Tensor& ours = buffer.value();
    if (!ours.defined()) continue;
    const std::string name = kBufferPrefix + buffer.key();
    known->insert(name);
    torch::Tensor read;
    CADRE_RETURN_IF_ERROR(ReadWhole(saved, name, "buffer '" + buffer.key() + "'",
                                    ours.scalar_type(), ours.sizes(), &read));
    loaded->emplace_back(ours, std::move(read));
  }
  return OkStatus();
}

Status CheckNoOthers(const SavedShards& saved, const std::set<std::string>& known) {
  for (const std::string& name : saved.names()) {
    const bool ours = name.rfind(kModelPrefix, 0) == 0 || name.rfind(kBufferPrefix, 0) == 0;
    if (!ours || known.count(name) > 0) continue;
    return InvalidArgumentError("the state is of another model: it has '" +
                                name.substr(name.find('.') + 1) + "', and this model has not");
  }
  return OkStatus();
}

Status NotRead(const Status& status, const std::string& who) {
  const bool other = status.code() == StatusCode::kInternal;
  return Status(other ? StatusCode::kInvalidArgument : status.code(), who + status.message());
}

}  // namespace cadre::nn
