#include "rendezvous/job/usage_log.h"

#include <algorithm>
#include <cmath>

namespace cadre::job {
namespace {

// A node may say anything.
float Share(double part, double whole) {
  if (!(whole > 0) || !std::isfinite(part)) return 0;
  return static_cast<float>(std::clamp(part / whole, 0.0, 1.0));
}

// A list that began before the first node had a GPU gets NaN for what was before.
void AddFrom(int index, bool known, float value, google::protobuf::RepeatedField<float>* values) {
  if (!known && values->empty()) return;
  while (values->size() < index) values->Add(std::nanf(""));
  values->Add(known ? value : std::nanf(""));
}

template <typename Value>
void KeepEverySecond(google::protobuf::RepeatedField<Value>* values) {
  int kept = 0;
  for (int i = 0; i < values->size(); i += 2) values->Set(kept++, values->Get(i));
  values->Truncate(kept);
}

}  // namespace

void UsageLog::Note(const std::string& node, const v1::NodeUsage& usage, int64_t at_us) {
  if (nodes_.size() >= kMaxNodesWithUsage && nodes_.count(node) == 0) return;
  v1::NodeUsageHistory& history = nodes_[node];
  const int count = history.at_us_size();
  if (count > 0 && at_us - history.at_us(count - 1) < interval_us_) return;
  history.add_at_us(at_us);
  history.add_cpu(Share(usage.cpu(), 1));
  history.add_memory(
      Share(static_cast<double>(usage.memory_used()), static_cast<double>(usage.memory_total())));
  const bool has_gpus = usage.gpus() > 0;
  AddFrom(count, has_gpus, Share(usage.gpu(), 1), history.mutable_gpu());
  AddFrom(count, has_gpus,
          Share(static_cast<double>(usage.gpu_memory_used()),
                static_cast<double>(usage.gpu_memory_total())),
          history.mutable_gpu_memory());
  history.set_memory_total(usage.memory_total());
  history.set_gpus(usage.gpus());
  history.set_gpu_memory_total(usage.gpu_memory_total());
  ++samples_;
  if (history.at_us_size() > kMaxUsageSamples || samples_ > kMaxUsageSamplesOfJob) Thin();
}

void UsageLog::End() {
  while (samples_ > std::max(kMaxUsageSamplesOfEnded, nodes_.size())) Thin();
}

void UsageLog::Thin() {
  interval_us_ *= 2;
  samples_ = 0;
  for (auto& [name, history] : nodes_) {
    KeepEverySecond(history.mutable_at_us());
    KeepEverySecond(history.mutable_cpu());
    KeepEverySecond(history.mutable_memory());
    KeepEverySecond(history.mutable_gpu());
    KeepEverySecond(history.mutable_gpu_memory());
    samples_ += static_cast<size_t>(history.at_us_size());
  }
}

v1::JobUsage UsageLog::All() const {
  v1::JobUsage all;
  for (const auto& [name, history] : nodes_) {
    *all.add_nodes() = history;
    all.mutable_nodes(all.nodes_size() - 1)->set_node(name);
  }
  return all;
}

}  // namespace cadre::job
