// What the workers of a job report, newest of each node, and samples of it over time. Bounded, and
// not durable: it is for people, and the next reports bring it back. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_JOB_PROGRESS_LOG_H_
#define CADRE_RENDEZVOUS_JOB_PROGRESS_LOG_H_

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
#include "rpc/figures.h"

namespace cadre::job {

constexpr size_t kMaxProgressSamples = 256;
// Between two samples at first; doubles whenever the samples are full and every other one goes.
constexpr int64_t kFirstSampleIntervalUs = 1000000;

class ProgressLog {
 public:
  // A node of the job's current generation reports. True: the slowest worker has another step than
  // it had.
  bool Note(const state::Job& job, const std::string& node, const v1::NodeProgress& progress,
            MonoTime now);
  // The generation is over: what was reported after the last sample becomes one.
  void EndGeneration(const state::Job& job);

  // Of what was reported before this, on the host's clock, it knows nothing. A job that waits in
  // the queue then is created later.
  void BeginAt(MonoTime now) { began_ = now; }
  MonoTime began() const { return began_; }

  // Of the job's current generation; nullopt when nothing was reported in it.
  std::optional<v1::JobProgress> Current(const state::Job& job, MonoTime now) const;
  // The step of the slowest worker in the job's current generation. Nullopt where none was told, or
  // where it says nothing of how far the job is: a program counts its steps anew in each generation
  // or epoch.
  std::optional<uint64_t> StepOf(const state::Job& job) const;
  const std::vector<v1::ProgressSample>& samples() const { return samples_; }
  // Of the figures in the samples.
  const std::vector<std::string>& figure_names() const { return figure_names_; }
  // Microseconds since the job was created; 0: none was reported in it.
  int64_t FirstProgressUs(uint64_t generation) const;

 private:
  // Since the step changed, and how long that usually takes; 0: not known.
  struct Pace {
    uint64_t step = 0;
    int64_t changed_us = 0;
    int64_t usual_us = 0;
    // Of the first step that was told in this generation.
    uint64_t first_step = 0;
    int64_t first_us = 0;
    bool known = false;
  };

  void BeginGeneration(uint64_t generation, int64_t at_us);
  bool NoteStep(uint64_t step, int64_t at_us);
  std::optional<v1::JobProgress> Sum(const state::Job& job) const;
  void Sample(const state::Job& job);
  void AddFigures(const rpc::Figures& figures, v1::ProgressSample* sample);
  // As fast as it was in this generation. 0: not known.
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
  int64_t unsampled_us_ = 0;  // when something was reported that is in no sample; 0: nothing
  std::map<uint64_t, int64_t> first_us_;  // by generation
};

// Where the job's time went, for people: what is durable of it, what its workers reported, and the
// recoveries that follow from both.
v1::Timeline MakeTimeline(const std::string& name, const state::Job& job,
                          const ProgressLog& progress);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_PROGRESS_LOG_H_
