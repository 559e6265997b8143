#include "worker_runtime/hooks/hook_harness.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker_runtime/hooks/low_rank.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::hooks {

void WithRanks(int ranks, const std::function<void(Communicator&)>& body) {
  testing::InProcessWorkers workers(ranks);
  workers.Run([&](Worker& worker) {
    auto communicator = shared_memory::ConnectSharedMemory(worker, {"test", kHookTestTimeout});
    ASSERT_OK(communicator);
    body(**communicator);
  });
}

float GradientValue(int rank, int step, size_t parameter, size_t i) {
  float value;
  FillRandom(static_cast<uint64_t>(rank) * 1000 + static_cast<uint64_t>(step), parameter, i,
             {&value, 1});
  return value;
}

size_t CountOf(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t dimension : shape) count *= static_cast<size_t>(dimension);
  return count;
}

TestGradients::TestGradients(Shapes shapes, std::vector<reduce::Bucket> assignment)
    : shapes_(std::move(shapes)) {
  for (const reduce::Bucket& bucket : assignment) {
    std::vector<GradientView> views;
    size_t offset = 0;
    for (const size_t i : bucket) {
      views.push_back({i, offset, CountOf(shapes_[i]), shapes_[i]});
      offset += views.back().count;
    }
    values_.emplace_back(offset);
    gradients_.push_back(std::move(views));
  }
}

std::vector<BucketView> TestGradients::views() const {
  std::vector<BucketView> views;
  for (size_t b = 0; b < values_.size(); ++b) {
    auto* const data = const_cast<float*>(values_[b].data());
    views.push_back(
        {b, values_.size(), {data, values_[b].size(), DataType::kFloat32}, gradients_[b]});
  }
  return views;
}

std::vector<float> TestGradients::Get(size_t parameter) const {
  for (size_t b = 0; b < values_.size(); ++b) {
    for (const GradientView& view : gradients_[b]) {
      if (view.parameter != parameter) continue;
      const auto from = values_[b].begin() + static_cast<ptrdiff_t>(view.offset);
      return {from, from + static_cast<ptrdiff_t>(view.count)};
    }
  }
  return {};
}

std::vector<std::vector<float>> TestGradients::GetAll() const {
  std::vector<std::vector<float>> all;
  for (size_t i = 0; i < shapes_.size(); ++i) all.push_back(Get(i));
  return all;
}

void TestGradients::Set(size_t parameter, const std::vector<float>& values) {
  for (size_t b = 0; b < values_.size(); ++b) {
    for (const GradientView& view : gradients_[b]) {
      if (view.parameter != parameter) continue;
      std::copy(values.begin(), values.end(), values_[b].begin() + view.offset);
    }
  }
}

void TestGradients::Fill(int rank, int step) {
  for (size_t b = 0; b < values_.size(); ++b) {
    for (const GradientView& view : gradients_[b]) {
      for (size_t i = 0; i < view.count; ++i) {
        values_[b][view.offset + i] = GradientValue(rank, step, view.parameter, i);
      }
    }
  }
}

Status ReduceAll(CommunicationHook& hook, Communicator& communicator,
                 const TestGradients& gradients) {
  std::vector<std::shared_ptr<Work>> works;
  for (const BucketView& bucket : gradients.views()) {
    works.push_back(hook.Start(communicator, bucket));
  }
  Status status;
  for (const auto& work : works) status.Update(work->Wait(kHookTestTimeout));
  return status;
}

}  // namespace cadre::hooks
