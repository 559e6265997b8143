// Whether an operator was given a parameter that is empty, since its unit does not run.
#ifndef CADRE_TORCH_FULLY_SHARDED_PARAMETER_WATCH_H_
#define CADRE_TORCH_FULLY_SHARDED_PARAMETER_WATCH_H_

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "ATen/record_function.h"
#include "torch/types.h"

namespace cadre::nn {

// Looks at the operators of the thread that made it, while it lives; one at a time in a thread.
// Each operator takes a microsecond longer or so.
class ParameterWatch {
 public:
  // Names by the parameters' implementations, of those that are not empty by themselves.
  using Names = std::map<const void*, std::string>;

  explicit ParameterWatch(Names names);
  ~ParameterWatch();
  ParameterWatch(const ParameterWatch&) = delete;
  ParameterWatch& operator=(const ParameterWatch&) = delete;

  // The first parameter that was used while it was empty; empty text: none.
  const std::string& found() const { return found_; }

 private:
  static std::unique_ptr<at::ObserverContext> OnOperator(const at::RecordFunction& call);
  void Look(const torch::Tensor& tensor);

  const Names names_;
  std::string found_;
  at::CallbackHandle handle_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_PARAMETER_WATCH_H_
