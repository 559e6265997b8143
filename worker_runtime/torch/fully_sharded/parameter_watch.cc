#include "cadre/torch/fully_sharded/parameter_watch.h"

#include "torch/utils.h"

namespace cadre::nn {
namespace {

// RecordFunction::inputs() asserts, in a program that is built without NDEBUG, what libtorch, which
// is built with it, does not keep. So the member itself is read, by the one way that C++ has:
// explicit instantiations may name what is private.
using Inputs = c10::ArrayRef<const c10::IValue> at::RecordFunction::*;
struct InputsMember {
  friend Inputs MemberOf(InputsMember);
};
template <Inputs member>
struct Instantiated {
  friend Inputs MemberOf(InputsMember) { return member; }
};
template struct Instantiated<&at::RecordFunction::inputs_>;

// libtorch calls back a plain function.
thread_local ParameterWatch* watch_of_this_thread = nullptr;

}  // namespace

ParameterWatch::ParameterWatch(Names names) : names_(std::move(names)) {
  watch_of_this_thread = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&OnOperator)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

ParameterWatch::~ParameterWatch() {
  at::removeCallback(handle_);
  watch_of_this_thread = nullptr;
}

std::unique_ptr<at::ObserverContext> ParameterWatch::OnOperator(const at::RecordFunction& call) {
  ParameterWatch* const watch = watch_of_this_thread;
  if (watch == nullptr) return nullptr;
  for (const c10::IValue& input : call.*MemberOf(InputsMember())) {
    if (input.isTensor()) {
      watch->Look(input.toTensor());
    } else if (input.isTensorList()) {
      for (const torch::Tensor& one : input.toTensorVector()) watch->Look(one);
    }
  }
  return nullptr;
}

void ParameterWatch::Look(const torch::Tensor& tensor) {
  if (!found_.empty() || !tensor.defined() || tensor.numel() > 0) return;
  const auto name = names_.find(tensor.unsafeGetTensorImpl());
  if (name != names_.end()) found_ = name->second;
}

}  // namespace cadre::nn
