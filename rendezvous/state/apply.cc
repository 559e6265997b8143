#include "rendezvous/state/apply.h"

#include <algorithm>
#include <utility>

#include "rendezvous/state/apply_cluster.h"
#include "rendezvous/state/apply_job.h"
#include "rendezvous/state/limits.h"

namespace cadre::state {
namespace {

// Of a job that is in the state, or was until now.
void RemoveFromIndexes(const Job& job, State* state) {
  state->by_user.Shrink(job.owner(), {job.spec_bytes, job.store.all_bytes()});
  state->by_user.Remove(job.owner(), job.saved.ended());
  state->ended_jobs.erase(job.saved.ended());
}

void AddToIndexes(const Job& job, State* state) {
  state->by_user.Add(job.owner(), job.saved.ended());
  state->by_user.Grow(job.owner(), {job.spec_bytes, job.store.all_bytes()});
  if (job.saved.ended() != 0) state->ended_jobs[job.saved.ended()] = job.name();
}

void PutJob(const std::string& name, Job job, State* state) {
  const auto before = state->jobs.find(name);
  if (before != state->jobs.end()) RemoveFromIndexes(before->second, state);
  AddToIndexes(job, state);
  state->jobs[name] = std::move(job);
}

void CreateJob(const v1::JobCreated& record, const std::string& name, State* state) {
  Job job(record.job());
  saved::Counters& counters = state->counters;
  // A name that is used again goes on counting generations, so that no old call fits a new run.
  const auto before = state->jobs.find(name);
  job.generation.saved.set_number(before != state->jobs.end() ? before->second.generation.number()
                                                              : counters.forgotten_generation());
  counters.set_submitted(std::max(counters.submitted(), job.saved.submission().order()));
  PutJob(name, std::move(job), state);
}

void RestoreJob(const saved::WholeJob& whole, State* state) {
  Job job(whole.job());
  for (const saved::AdmittedNode& node : whole.nodes()) {
    job.slots += node.node().slots();
    job.nodes[node.node().name()] = node;
  }
  job.generation = Generation(whole.generation());
  // Older states have it whole.
  if (HasEnded(job.phase())) DropStart(&job);
  const std::string name = job.name();
  PutJob(name, std::move(job), state);
}

void Restore(const saved::State& piece, State* state) {
  if (piece.has_counters()) state->counters = piece.counters();
  for (const saved::ClusterNode& node : piece.nodes()) state->cluster.nodes[node.name()] = node;
  for (const saved::PlacedPart& part : piece.parts()) state->cluster.parts[part.part().id()] = part;
  for (const saved::WholeJob& job : piece.jobs()) RestoreJob(job, state);
}

// Returns the job that is forgotten for it.
std::string EndJob(const v1::JobEnded& record, const std::string& name, State* state) {
  const auto found = state->jobs.find(name);
  if (found == state->jobs.end() || HasEnded(found->second.phase())) return "";
  Job* job = &found->second;
  RemoveFromIndexes(*job, state);
  saved::Counters& counters = state->counters;
  counters.set_jobs_ended(counters.jobs_ended() + 1);
  EndJob(record, counters.jobs_ended(), job);
  AddToIndexes(*job, state);
  if (state->ended_jobs.size() <= kMaxEndedJobs) return "";
  const std::string forgotten = state->ended_jobs.at(state->by_user.NextToForget());
  const auto oldest = state->jobs.find(forgotten);
  counters.set_forgotten_generation(
      std::max(counters.forgotten_generation(), oldest->second.generation.number()));
  RemoveFromIndexes(oldest->second, state);
  state->jobs.erase(oldest);
  return forgotten;
}

}  // namespace

std::string Apply(const v1::Record& record, State* state) {
  switch (record.body_case()) {
    case v1::Record::kSnapshot:
      Restore(record.snapshot(), state);
      return "";
    case v1::Record::kJobCreated:
      CreateJob(record.job_created(), record.job(), state);
      return "";
    case v1::Record::kJobEnded:
      return EndJob(record.job_ended(), record.job(), state);
    default:
      break;
  }
  if (ApplyToCluster(record, state)) return "";
  const auto found = state->jobs.find(record.job());
  if (found == state->jobs.end() || HasEnded(found->second.phase())) return "";
  if (record.has_node_admitted()) MarkJoined(record.node_admitted().part(), &state->cluster);
  Job* job = &found->second;
  const size_t before = job->store.all_bytes();
  ApplyToJob(record, job);
  const size_t now = job->store.all_bytes();
  if (now > before) state->by_user.Grow(job->owner(), {0, now - before});
  if (now < before) state->by_user.Shrink(job->owner(), {0, before - now});
  return "";
}

}  // namespace cadre::state
