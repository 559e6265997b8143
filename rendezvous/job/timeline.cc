#include "rendezvous/job/timeline.h"

namespace cadre::job {
namespace {

// 0 where one of the two has not happened.
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

v1::Timeline MakeTimeline(const std::string& name, const state::Job& job,
                          const ProgressLog& progress) {
  v1::Timeline timeline = job.saved.timeline();
  timeline.set_job(name);
  for (v1::GenerationTimeline& generation : *timeline.mutable_generations()) {
    // Of one that ran when the server began anew the first may have been long before.
    if (generation.running_us() < progress.began_us()) continue;
    generation.set_first_progress_us(progress.FirstProgressUs(generation.generation()));
  }
  for (int i = 1; i < timeline.generations_size(); ++i) {
    const v1::GenerationTimeline& from = timeline.generations(i - 1);
    // A generation that was stopped to take in more nodes is nothing to recover from.
    if (from.failed_us() == 0) continue;
    *timeline.add_recoveries() = RecoveryOf(from, timeline.generations(i));
  }
  for (const v1::ProgressSample& sample : progress.samples()) *timeline.add_progress() = sample;
  return timeline;
}

}  // namespace cadre::job
