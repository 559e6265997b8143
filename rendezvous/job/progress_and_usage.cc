#include "rendezvous/job/progress_and_usage.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "rendezvous/state/state_limits.h"

namespace cadre::job {
namespace {

// An estimate of more than ten years is of no use.
constexpr double kLongestLeftUs = 10 * 365 * 86400e6;

// Returns 0 if one of the two has not happened.
int64_t Between(int64_t from_us, int64_t to_us) {
  return from_us == 0 || to_us == 0 || to_us < from_us ? 0 : to_us - from_us;
}

v1::Recovery RecoveryOf(const v1::GenerationTimeline& from, const v1::GenerationTimeline& to) {
  v1::Recovery recovery;
  recovery.set_from_generation(from.generation());
  recovery.set_to_generation(to.generation());
  recovery.set_reason(from.end_reason());
  recovery.set_stop_us(Between(from.failed_us(), from.stopped_us()));
  recovery.set_gather_us(Between(from.stopped_us(), to.formed_us()));
  recovery.set_start_us(Between(to.formed_us(), to.running_us()));
  recovery.set_first_progress_us(Between(to.running_us(), to.first_progress_us()));
  recovery.set_total_us(Between(from.failed_us(), to.running_us()));
  return recovery;
}

}  // namespace

void ProgressLog::BeginGeneration(uint64_t generation, int64_t at_us) {
  nodes_.clear();
  pace_ = {};
  counts_anew_ = false;
  generation_ = generation;
  first_us_[generation_] = at_us;
  // The timeline drops the oldest generations too.
  if (first_us_.size() > state::kMaxTimeline) first_us_.erase(first_us_.begin());
  sampled_us_ = at_us - interval_us_;
}

bool ProgressLog::NoteStep(uint64_t step, int64_t at_us) {
  if (pace_.known && step == pace_.step) return false;
  if (pace_.known) {
    const int64_t took_us = at_us - pace_.changed_us;
    pace_.usual_us = pace_.usual_us == 0 ? took_us : (3 * pace_.usual_us + took_us) / 4;
  }
  if (!pace_.known || step < pace_.first_step) {
    pace_.first_step = step;
    pace_.first_us = at_us;
  }
  pace_.step = step;
  pace_.changed_us = at_us;
  pace_.known = true;
  return true;
}

bool ProgressLog::Note(const state::Job& job, const std::string& node,
                       const v1::NodeProgress& progress, MonoTime now) {
  const int64_t at_us = now.micros() - job.saved.times().created_us();
  if (generation_ != job.generation.number()) BeginGeneration(job.generation.number(), at_us);
  v1::NodeProgress& before = nodes_[node];
  // If the fastest worker goes back, a new epoch has begun; the slowest may be one that had
  // reported nothing before.
  counts_anew_ =
      counts_anew_ || progress.of_generation() || progress.max_step() < before.max_step();
  before = progress;
  *before.mutable_figures() = rpc::CheckedFigures(progress.figures());
  unsampled_us_ = at_us;
  const std::optional<v1::JobProgress> sum = Sum(job);
  const bool other_step = sum.has_value() && NoteStep(sum->step(), at_us);
  // Not at each report: in a large job some node reports all the time.
  if (at_us - sampled_us_ >= interval_us_) Sample(job);
  return other_step;
}

void ProgressLog::EndGeneration(const state::Job& job) {
  if (unsampled_us_ > sampled_us_) Sample(job);
}

void ProgressLog::Sample(const state::Job& job) {
  const std::optional<v1::JobProgress> current = Sum(job);
  if (!current.has_value()) return;
  v1::ProgressSample sample;
  sample.set_generation(generation_);
  sample.set_at_us(unsampled_us_);
  sample.set_step(current->step());
  sample.set_samples_per_second(current->samples_per_second());
  sample.set_loss(current->loss());
  AddFigures(current->figures(), &sample);
  sampled_us_ = unsampled_us_;
  samples_.push_back(std::move(sample));
  if (samples_.size() <= kMaxProgressSamples) return;
  size_t kept = 0;
  for (size_t i = 0; i < samples_.size(); i += 2) samples_[kept++] = samples_[i];
  samples_.resize(kept);
  interval_us_ *= 2;
}

void ProgressLog::AddFigures(const rpc::Figures& figures, v1::ProgressSample* sample) {
  for (const v1::Figure& figure : figures) {
    const auto found = std::find(figure_names_.begin(), figure_names_.end(), figure.name());
    const auto index = static_cast<int>(found - figure_names_.begin());
    if (found == figure_names_.end()) {
      // If a program makes up new names all the time, only the first ones are kept.
      if (index >= rpc::kMaxFigures) continue;
      figure_names_.push_back(figure.name());
    }
    while (sample->figures_size() <= index) sample->add_figures(std::nan(""));
    sample->set_figures(index, figure.value());
  }
}

int64_t ProgressLog::LeftUs(const v1::JobProgress& current) const {
  if (current.step() <= pace_.first_step || current.step() > current.total()) return 0;
  const auto done = static_cast<double>(current.step() - pace_.first_step);
  const auto left = static_cast<double>(current.total() - current.step());
  const double left_us = static_cast<double>(pace_.changed_us - pace_.first_us) * (left / done);
  return left_us < kLongestLeftUs ? static_cast<int64_t>(left_us) : 0;
}

std::optional<v1::JobProgress> ProgressLog::Current(const state::Job& job, MonoTime now) const {
  std::optional<v1::JobProgress> current = Sum(job);
  if (!current.has_value() || !pace_.known) return current;
  const int64_t at_us = now.micros() - job.saved.times().created_us();
  current->set_quiet_us(std::max<int64_t>(at_us - pace_.changed_us, 0));
  current->set_usual_us(pace_.usual_us);
  current->set_left_us(LeftUs(*current));
  return current;
}

std::optional<uint64_t> ProgressLog::StepOf(const state::Job& job) const {
  const std::optional<v1::JobProgress> current = Sum(job);
  if (!current.has_value() || counts_anew_) return std::nullopt;
  return current->step();
}

std::optional<v1::JobProgress> ProgressLog::Sum(const state::Job& job) const {
  if (generation_ != job.generation.number() || nodes_.empty()) return std::nullopt;
  v1::JobProgress current;
  std::optional<decltype(job.generation.node_ranks)::mapped_type> figures_of;
  double loss = 0;
  uint32_t losses = 0;
  for (const auto& [name, node] : nodes_) {
    const auto rank = job.generation.node_ranks.find(name);
    if (rank == job.generation.node_ranks.end() || node.workers() == 0) continue;
    if (current.workers() == 0 || node.min_step() < current.step()) {
      current.set_step(node.min_step());
      current.set_slowest_rank(job.generation.member(rank->second).first_rank() +
                               node.slowest_local_rank());
    }
    current.set_max_step(std::max(current.max_step(), node.max_step()));
    current.set_samples_per_second(current.samples_per_second() + node.samples_per_second());
    current.set_workers(current.workers() + node.workers());
    loss += node.loss() * node.workers();
    if (node.loss() != 0) losses += node.workers();
    current.set_total(std::max(current.total(), node.total()));
    if (!node.figures().empty() && (!figures_of.has_value() || rank->second < *figures_of)) {
      figures_of = rank->second;
      *current.mutable_figures() = node.figures();
    }
  }
  if (current.workers() == 0) return std::nullopt;
  if (losses > 0) current.set_loss(loss / losses);
  return current;
}

int64_t ProgressLog::FirstProgressUs(uint64_t generation) const {
  const auto found = first_us_.find(generation);
  return found == first_us_.end() ? 0 : found->second;
}

v1::Timeline MakeTimeline(const std::string& name, const state::Job& job,
                          const ProgressLog& progress) {
  v1::Timeline timeline = job.saved.timeline();
  timeline.set_job(name);
  for (v1::GenerationTimeline& generation : *timeline.mutable_generations()) {
    // If the generation ran when the server was restarted, its first progress may have been long
    // before.
    const int64_t running_us = job.saved.times().created_us() + generation.running_us();
    if (MonoTime::FromMicros(running_us) < progress.began()) continue;
    generation.set_first_progress_us(progress.FirstProgressUs(generation.generation()));
  }
  for (int i = 1; i < timeline.generations_size(); ++i) {
    const v1::GenerationTimeline& from = timeline.generations(i - 1);
    // A generation that was stopped to take in more nodes is nothing to recover from.
    if (from.failed_us() == 0) continue;
    *timeline.add_recoveries() = RecoveryOf(from, timeline.generations(i));
  }
  for (const v1::ProgressSample& sample : progress.samples()) *timeline.add_progress() = sample;
  for (const std::string& name : progress.figure_names()) timeline.add_figure_names(name);
  return timeline;
}

namespace {

// A node may send any values, so the result is kept between 0 and 1.
float Share(double part, double whole) {
  if (!(whole > 0) || !std::isfinite(part)) return 0;
  return static_cast<float>(std::clamp(part / whole, 0.0, 1.0));
}

// Adds a value to a list that may begin with the first sample that has one: samples before it get
// NaN.
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
