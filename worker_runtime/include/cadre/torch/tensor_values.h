// Finds the tensors in what functions take and return, whatever else is in there.
#ifndef CADRE_TORCH_TENSOR_VALUES_H_
#define CADRE_TORCH_TENSOR_VALUES_H_

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch/types.h"

namespace cadre::nn::internal {

// Visits all tensors of a value in order: the value itself, or those of a vector, tuple, pair or
// array.
template <typename Visitor>
void ForEachTensor(torch::Tensor& tensor, const Visitor& visit) {
  visit(tensor);
}
template <typename Visitor>
void ForEachTensor(std::vector<torch::Tensor>& tensors, const Visitor& visit) {
  for (torch::Tensor& tensor : tensors) visit(tensor);
}
template <typename T, typename = void>
struct IsTuple : std::false_type {};
// Pairs and arrays, too.
template <typename T>
struct IsTuple<T, std::void_t<decltype(std::tuple_size<T>::value)>> : std::true_type {};

template <typename Value, typename Visitor>
void ForEachTensor(Value& value, const Visitor& visit) {
  if constexpr (IsTuple<Value>::value) {
    std::apply([&visit](auto&... one) { (ForEachTensor(one, visit), ...); }, value);
  }
}

// Moves the tensors out of a value, leaving undefined ones; and back again.
template <typename Value>
std::vector<torch::Tensor> TakeTensors(Value& value) {
  std::vector<torch::Tensor> tensors;
  ForEachTensor(value, [&tensors](torch::Tensor& tensor) {
    tensors.push_back(std::exchange(tensor, torch::Tensor()));
  });
  return tensors;
}
template <typename Value>
void PutTensors(const std::vector<torch::Tensor>& tensors, Value& value) {
  size_t next = 0;
  ForEachTensor(value, [&](torch::Tensor& tensor) { tensor = tensors[next++]; });
}

template <typename T>
constexpr bool HoldsTensorsAlone();
template <typename T, size_t... kPlaces>
constexpr bool AllHoldTensorsAlone(std::index_sequence<kPlaces...>) {
  return (HoldsTensorsAlone<std::tuple_element_t<kPlaces, T>>() && ...);
}
// Whether a value consists only of what ForEachTensor() visits.
template <typename T>
constexpr bool HoldsTensorsAlone() {
  if constexpr (IsTuple<T>::value) {
    return AllHoldTensorsAlone<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return std::is_same_v<T, torch::Tensor> || std::is_same_v<T, std::vector<torch::Tensor>>;
  }
}

}  // namespace cadre::nn::internal

#endif  // CADRE_TORCH_TENSOR_VALUES_H_
