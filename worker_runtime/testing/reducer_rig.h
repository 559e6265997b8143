// Small models, and a function that runs on each rank, for the tests of the reducer.
#ifndef CADRE_WORKER_RUNTIME_TESTING_REDUCER_RIG_H_
#define CADRE_WORKER_RUNTIME_TESTING_REDUCER_RIG_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/reducer.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::testing {

inline constexpr std::chrono::nanoseconds kLong = std::chrono::seconds(30);

// One rank's model: parameters of the given sizes, all with the same value.
struct Model {
  Model(std::vector<size_t> sizes, float value) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      values.emplace_back(sizes[i], value);
      names.push_back("p" + std::to_string(i));
    }
  }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> result;
    for (size_t i = 0; i < values.size(); ++i) {
      result.push_back({names[i], {values[i].data(), values[i].size(), DataType::kFloat32}, {}});
    }
    return result;
  }
  std::vector<std::vector<float>> values;
  std::vector<std::string> names;
};

// Puts each gradient into a bucket of its own, unless the test changes the options.
inline ReducerOptions Small() {
  ReducerOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1;
  options.timeout = kLong;
  return options;
}

inline Span<float> Floats(Buffer buffer) {
  return {static_cast<float*>(buffer.data), buffer.count};
}

inline void Fill(const Reducer& reducer, size_t i, float value) {
  for (float& one : Floats(reducer.Gradient(i))) one = value;
}

inline void OnEachRank(int world_size, const std::function<void(Communicator&)>& body,
                       std::chrono::nanoseconds timeout = kLong) {
  OnEachRank(sockets::ConnectSockets, world_size, body, timeout);
}

inline void MarkAll(Reducer& reducer, float value) {
  for (size_t i = 0; i < reducer.size(); ++i) {
    Fill(reducer, i, value);
    ASSERT_OK(reducer.MarkReady(i));
  }
}

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_REDUCER_RIG_H_
