// What the nodes of a job report while it runs, sampled over time: the progress of its workers
// (ProgressLog, and the timeline that is made with it) and how busy the nodes are (UsageLog). Both
// are bounded, and not durable because they are only shown to people. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_JOB_PROGRESS_AND_USAGE_H_
#define CADRE_RENDEZVOUS_JOB_PROGRESS_AND_USAGE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/state/state.h"
#include "rpc/job_progress.h"

namespace cadre::job {

constexpr size_t kMaxProgressSamples = 256;
// The time between two samples at first. It doubles, and every other sample is dropped, whenever
// the samples are full.
constexpr int64_t kFirstSampleIntervalUs = 1000000;

// The newest progress report of each of a job's nodes, and samples of their progress over time.
// After a restart of the server the next reports restore it.
class ProgressLog {
 public:
  // Adds a report of a node of the job's current generation. Returns true if the step of the
  // slowest worker has changed.
  bool Note(const state::Job& job, const std::string& node, const v1::NodeProgress& progress,
            MonoTime now);
  // Called when the generation is over: adds a sample of what was reported since the last one.
  void EndGeneration(const state::Job& job);

  // Sets the host time from which reports are known: the server was restarted then. A job that is
  // queued then gets a later creation time.
  void BeginAt(MonoTime now) { began_ = now; }
  MonoTime began() const { return began_; }

  // Returns the progress of the job's current generation, or nullopt if none was reported.
  std::optional<v1::JobProgress> Current(const state::Job& job, MonoTime now) const;
  // Returns the step of the slowest worker in the job's current generation; nullopt if none was
  // reported, or if the step does not tell how far the job is because the program restarts its
  // count in each generation or epoch.
  std::optional<uint64_t> StepOf(const state::Job& job) const;
  const std::vector<v1::ProgressSample>& samples() const { return samples_; }
  // The names of the figures in the samples.
  const std::vector<std::string>& figure_names() const { return figure_names_; }
  // Returns the time of the first report in the generation, in microseconds since the job was
  // created; 0 if there was none.
  int64_t FirstProgressUs(uint64_t generation) const;

 private:
  // When the step last changed, and how long that usually takes; 0 if not known.
  struct Pace {
    uint64_t step = 0;
    int64_t changed_us = 0;
    int64_t usual_us = 0;
    // The first step reported in this generation, and when.
    uint64_t first_step = 0;
    int64_t first_us = 0;
    bool known = false;
  };

  void BeginGeneration(uint64_t generation, int64_t at_us);
  bool NoteStep(uint64_t step, int64_t at_us);
  std::optional<v1::JobProgress> Sum(const state::Job& job) const;
  void Sample(const state::Job& job);
  void AddFigures(const rpc::Figures& figures, v1::ProgressSample* sample);
  // Returns the time that the remaining steps take at the speed of this generation; 0 if not known.
  int64_t LeftUs(const v1::JobProgress& current) const;

  MonoTime began_ = MonoTime::FromMicros(std::numeric_limits<int64_t>::min());
  uint64_t generation_ = 0;
  std::map<std::string, v1::NodeProgress> nodes_;
  Pace pace_;
  bool counts_anew_ = false;
  std::vector<v1::ProgressSample> samples_;
  std::vector<std::string> figure_names_;
  int64_t interval_us_ = kFirstSampleIntervalUs;
  int64_t sampled_us_ = 0;
  int64_t unsampled_us_ = 0;              // when something was last reported; 0: never
  std::map<uint64_t, int64_t> first_us_;  // by generation
};

// Returns where the job's time went, for display: its durable timeline, what its workers reported,
// and the recoveries that follow from both.
v1::Timeline MakeTimeline(const std::string& name, const state::Job& job,
                          const ProgressLog& progress);

// The time between two samples of a node at first. It doubles, and every other sample is dropped,
// whenever the samples of a node, or those of all nodes together, are full.
constexpr int64_t kFirstUsageIntervalUs = 10000000;
// Samples of one node, of 24 bytes each: an hour at the first interval.
constexpr int kMaxUsageSamples = 360;
constexpr size_t kMaxUsageSamplesOfJob = 16384;
constexpr size_t kMaxUsageSamplesOfEnded = 2048;
// Beyond this many nodes of a job, further nodes get no samples.
constexpr size_t kMaxNodesWithUsage = 1024;

// How busy the nodes of a job are, over time.
class UsageLog {
 public:
  // Adds what the node reported at that time since the job was created.
  void Note(const std::string& node, const v1::NodeUsage& usage, int64_t at_us);

  // Called when the job has ended: keeps fewer samples, because many ended jobs are remembered.
  void End();
  // The samples of all nodes, sorted by name.
  v1::JobUsage All() const;

 private:
  void Thin();

  std::map<std::string, v1::NodeUsageHistory> nodes_;
  size_t samples_ = 0;
  int64_t interval_us_ = kFirstUsageIntervalUs;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_PROGRESS_AND_USAGE_H_
