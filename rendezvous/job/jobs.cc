#include "rendezvous/job/jobs.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/job/job.h"
#include "rendezvous/job/verdict.h"
#include "rendezvous/state/owner.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/records.h"
#include "rendezvous/state/state_limits.h"
#include "rpc/job_progress.h"

namespace cadre::job {
namespace {

// Limits of jobs that have not ended: of all, of one user, and of jobs that administrators begin
// with `cadre run`. So no user alone can keep others out.
constexpr size_t kMaxUnendedJobs = 10000;
constexpr size_t kMaxUnendedJobsOfUser = 1000;
constexpr size_t kMaxUnendedJobsOfAdministrators = kMaxUnendedJobs / 2;
// The elements of one array, each of which is a job.
constexpr size_t kMaxArrayElements = kMaxUnendedJobsOfUser;
// A submitted spec is sent to its nodes together with others in messages of 1 MiB.
constexpr size_t kMaxSubmittedSpecBytes = 512 << 10;

absl::Status TooManyOf(const std::string& user) {
  return absl::ResourceExhaustedError(
      absl::StrCat("user ", user, " has ", kMaxUnendedJobsOfUser,
                   " jobs that have not ended, and may have no more at once; wait for some to "
                   "end, or cancel them"));
}

// Formats a size like "63.9 MiB".
std::string Mebibytes(size_t bytes) {
  return absl::StrFormat("%.4g MiB", static_cast<double>(bytes) / (1 << 20));
}

// Checks that so many jobs with this spec may be added to those that have not ended.
absl::Status CheckSpecBytes(const v1::JobSpec& spec, size_t count, const std::string& owner,
                            const state::JobsByUser& jobs) {
  const size_t more = count * spec.ByteSizeLong();
  const size_t own = jobs.BytesOf(owner).specs;
  if (own + more > state::kMaxSpecBytesOfUser) {
    return absl::ResourceExhaustedError(
        absl::StrCat(owner.empty() ? "administrators have " : absl::StrCat("user ", owner, " has "),
                     Mebibytes(own), " of specs of jobs that have not ended, and this one has ",
                     Mebibytes(more), count > 1 ? absl::StrCat(" in ", count, " elements") : "",
                     "; the limit (specs of a user) is ", Mebibytes(state::kMaxSpecBytesOfUser),
                     ": make it smaller, wait for some to end, or cancel them"));
  }
  if (jobs.all_bytes().specs + more > state::kMaxSpecBytesOfAll) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server has ", Mebibytes(jobs.all_bytes().specs),
                     " of specs of jobs that have not ended; the limit (specs of all) is ",
                     Mebibytes(state::kMaxSpecBytesOfAll), ": try again when some have ended"));
  }
  return absl::OkStatus();
}

}  // namespace

const Job* Jobs::Find(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : &found->second.job;
}

void Jobs::Add(const std::string& name) {
  Remove(name);
  jobs_.try_emplace(name, name, &context_, &cluster_waits_, &cluster_events_);
}

void Jobs::Remove(const std::string& name) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return;
  Entry& entry = found->second;
  for (const auto& [node, connection] : entry.job.view().volatile_state.connections.all()) {
    if (!connection.stream.has_value()) continue;
    context_.out.Close(
        *connection.stream,
        absl::UnavailableError("the job ended long ago, and the server has dropped it"));
  }
  SetTimer(name, MonoTime::Never(), &entry.lease, &leases_);
  SetTimer(name, MonoTime::Never(), &entry.deadline, &deadlines_);
  dirty_.erase(name);
  jobs_.erase(found);
}

template <typename Action>
void Jobs::With(const std::string& name, Action action) {
  const auto found = jobs_.find(name);
  CADRE_CHECK(found != jobs_.end(), "no job ", name);
  Entry& entry = found->second;
  const JobView view = entry.job.view();
  const v1::JobPhase phase = view.job.phase();
  const uint32_t restarts = view.job.saved.restarts().all();
  action(entry.job);
  const bool ends = !state::HasEnded(phase) && state::HasEnded(view.job.phase());
  const bool queued = phase != v1::QUEUED && view.job.phase() == v1::QUEUED;
  // The steps of a batch job end with its script's run, and a step may lack a node for the next.
  const bool stops = phase != v1::STOPPING && view.job.phase() == v1::STOPPING;
  const bool run_ends =
      (stops || view.job.saved.restarts().all() != restarts) &&
      (view.job.saved.spec().has_batch() || view.job.saved.submission().step_of() != 0);
  if ((ends || run_ends || queued) && !view.job.user().empty()) {
    cluster_events_.changed.push_back(name);
  }
  if (view.volatile_state.dirty) dirty_.insert(name);
  SetTimer(name, view.volatile_state.connections.NextTimer(), &entry.lease, &leases_);
  SetTimer(name, view.volatile_state.deadline, &entry.deadline, &deadlines_);
  for (const std::string& dropped : context_.out.TakeDroppedJobs()) Remove(dropped);
}

void Jobs::SetTimer(const std::string& name, MonoTime at, MonoTime* timer, Timers* timers) {
  if (at == *timer) return;
  if (*timer != MonoTime::Never()) timers->erase({*timer, name});
  if (at != MonoTime::Never()) timers->insert({at, name});
  *timer = at;
}

void Jobs::Restore() {
  for (const auto& [name, state] : context_.state.jobs) {
    if (!state::HasEnded(state.phase())) With(name, [](Job& job) { job.Restore(); });
  }
}

void Jobs::ExtendAbsentLeases() {
  for (const auto& [name, state] : context_.state.jobs) {
    if (!state::HasEnded(state.phase())) With(name, [](Job& job) { job.ExtendAbsentLeases(); });
  }
}

absl::Status Jobs::CheckJoin(const v1::NodeMessage& message) const {
  const v1::Join& join = message.join();
  RETURN_IF_ERROR(state::CheckJoin(join));
  // The launcher of an allocation brings no spec, as its job was submitted with one.
  // cluster::CheckLauncher() checks the allocation itself.
  if (join.part() != 0) return absl::OkStatus();
  if (!join.has_spec()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", join.node(), " sent no job spec, and names no allocation of a submitted job"));
  }
  RETURN_IF_ERROR(state::CheckSpec(join.spec()));
  const std::string& name = join.spec().name();
  if (message.job() == name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the message is for job ",
                                                 OneLine(message.job(), state::kMaxJobNameBytes),
                                                 ", its spec for ", name));
}

bool Jobs::IsOfEndedJob(const v1::NodeMessage& message) const {
  const Job* job = Find(message.job());
  if (job == nullptr || !state::HasEnded(job->view().job.phase())) return false;
  if (message.generation() != 0) return true;
  if (context_.config.runs_once && job->view().volatile_state.ended_here) return true;
  const auto& nodes = job->view().job.nodes;
  const auto node = nodes.find(message.join().node());
  return node != nodes.end() && node->second.node().incarnation() == message.incarnation();
}

void Jobs::Join(StreamId stream, const v1::NodeMessage& message) {
  // The job of an allocation exists already. A node that was disconnected when its job ended, or
  // while the server was away, must not start another run of the job.
  const bool brings_job = message.join().part() == 0 && !IsOfEndedJob(message);
  if (brings_job && !Prepare(stream, message.join())) return;
  With(message.job(), [&](Job& job) { job.Join(stream, message); });
}

bool Jobs::Prepare(StreamId stream, const v1::Join& join) {
  const std::string& name = join.spec().name();
  const std::string& only_job = context_.config.only_job;
  const auto reject = [&](absl::StatusCode code, absl::string_view message) {
    context_.out.Reject(stream, name, code, message);
    return false;
  };
  if (!only_job.empty() && name != only_job) {
    return reject(absl::StatusCode::kFailedPrecondition,
                  absl::StrCat("this endpoint is served by a launcher of job ", only_job,
                               " and ends with it; use another port for job ", name,
                               ", or 'cadre server' for several jobs"));
  }
  const Job* job = Find(name);
  if (job != nullptr && !state::HasEnded(job->view().job.phase())) {
    const absl::Status same = state::CheckSameJob(job->view().job.saved.spec(), join.spec());
    if (same.ok()) return true;
    With(name, [&](Job& refusing) {
      refusing.OnNodeRefused(absl::StrCat("node ", OneLine(join.node(), state::kMaxNodeTextBytes),
                                          " was refused: ", same.message()));
    });
    return reject(same.code(), std::string(same.message()));
  }
  if (job != nullptr && job->view().volatile_state.connections.open() > 0) {
    return reject(absl::StatusCode::kFailedPrecondition,
                  absl::StrCat("job ", name, " has ", EndText(job->view().job.saved.verdict()),
                               "; its last nodes are still leaving"));
  }
  const state::State& state = context_.state;
  const std::string& user = join.caller().user();
  const bool full = state.jobs.size() - state.ended_jobs.size() >= kMaxUnendedJobs;
  if (full || (user.empty() && state.by_user.NotEnded("") >= kMaxUnendedJobsOfAdministrators)) {
    return reject(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat(
            "the server has ", full ? kMaxUnendedJobs : kMaxUnendedJobsOfAdministrators,
            full ? " jobs already" : " jobs already that administrators began with cadre run"));
  }
  if (!user.empty() && state.by_user.NotEnded(user) >= kMaxUnendedJobsOfUser) {
    const absl::Status many = TooManyOf(user);
    return reject(many.code(), many.message());
  }
  if (const absl::Status room = CheckSpecBytes(join.spec(), 1, user, state.by_user); !room.ok()) {
    return reject(room.code(), room.message());
  }
  saved::Job begun;
  *begun.mutable_spec() = join.spec();
  begun.set_started_by(user);
  begun.set_phase(v1::GATHERING);
  Create(std::move(begun));
  context_.out.Note(
      name, absl::StrCat("created by node ", join.node(), user.empty() ? "" : " of user ", user));
  return true;
}

void Jobs::Create(saved::Job job) {
  const absl::Time created = absl::FromUnixMillis(context_.config.unix_ms_at_zero) +
                             absl::Microseconds(context_.now.micros());
  // The format of JobStatus.
  job.set_run(absl::FormatTime("%Y%m%dT%H%M%E6SZ", created, absl::UTCTimeZone()));
  saved::JobTimes* times = job.mutable_times();
  times->set_created_us(context_.now.micros());
  times->set_gathering_us(context_.now.micros());
  times->set_last_join_us(context_.now.micros());
  if (job.submission().order() != 0) times->set_submitted_us(context_.now.micros());
  const std::string name = job.spec().name();
  const std::string ended_kept_as = EndedKeptAs(name);
  v1::Record record;
  record.set_job(name);
  *record.mutable_job_created()->mutable_job() = std::move(job);
  record.mutable_job_created()->set_ended_kept_as(ended_kept_as);
  context_.out.Commit(std::move(record));
  if (!ended_kept_as.empty()) Add(ended_kept_as);
  Add(name);
}

const state::Job* Jobs::FindById(absl::string_view text) const {
  uint64_t id = 0;
  if (!absl::SimpleAtoi(text, &id)) return nullptr;
  const auto name = context_.state.by_id.find(id);
  return name == context_.state.by_id.end() ? nullptr : &Find(name->second)->view().job;
}

std::string Jobs::NameWithId(absl::string_view name, uint64_t id) const {
  std::string numbered(name);
  do {
    const std::string suffix = absl::StrCat("-", id);
    numbered.resize(std::min(numbered.size(), state::kMaxJobNameBytes - suffix.size()));
    numbered += suffix;
  } while (Find(numbered) != nullptr);
  return numbered;
}

std::string Jobs::EndedKeptAs(const std::string& name) const {
  const Job* ended = Find(name);
  if (ended == nullptr || ended->view().job.id() == 0) return "";
  CADRE_CHECK(state::HasEnded(ended->view().job.phase()), "job ", name, " has not ended");
  return NameWithId(ended->view().job.submitted_name(), ended->view().job.id());
}

bool Jobs::IsNameFree(const std::string& name, absl::string_view user) const {
  // Of a job that was dropped from the state, too.
  const auto& allocations = context_.state.cluster.allocations;
  if (std::any_of(allocations.begin(), allocations.end(),
                  [&](const auto& one) { return one.second.part().job() == name; })) {
    return false;
  }
  const Job* known = Find(name);
  if (known == nullptr) return true;
  const state::Job& job = known->view().job;
  // A job without an id would be replaced.
  return state::HasEnded(job.phase()) && (job.id() != 0 || job.owner() == user) &&
         known->view().volatile_state.connections.open() == 0;
}

void Jobs::OnNodeMessage(const std::string& name, const std::string& node,
                         const v1::NodeMessage& message) {
  With(name, [&](Job& job) { job.OnMessage(node, message); });
}

void Jobs::OnStreamClosed(const std::string& name, const std::string& node) {
  With(name, [&](Job& job) { job.OnStreamClosed(node); });
}

void Jobs::OnStoreCall(CallId call, const v1::StoreRequest& request) {
  if (Find(request.job()) == nullptr) {
    const std::string why =
        absl::StrCat("no job ", OneLine(request.job(), state::kMaxJobNameBytes));
    return context_.out.Reply(
        call, state::ToProto(keyspace::ErrorReply(request.client(), request.request_id(),
                                                  absl::StatusCode::kNotFound, why)));
  }
  With(request.job(), [&](Job& job) {
    job.OnStoreCall(keyspace::Requester{call.value, ""}, request);
  });
}

void Jobs::OnStoreCallDropped(const std::string& name, CallId call) {
  With(name, [&](Job& job) { job.OnStoreCallDropped(call); });
}

void Jobs::Cancel(const std::string& name, const std::string& reason, int signal,
                  v1::FailureCause cause, bool at_once) {
  if (Find(name) == nullptr) return;
  With(name, [&](Job& job) { job.Cancel(reason, signal, cause, at_once); });
}

void Jobs::Requeue(const std::string& name, const std::string& reason, bool hold) {
  if (Find(name) == nullptr) return;
  if (hold) {
    v1::JobUpdate update;
    update.set_held(true);
    Update(name, update);
  }
  With(name, [&](Job& job) { job.Requeue(reason); });
}

void Jobs::Signal(const std::string& name, int signal) {
  if (Find(name) == nullptr) return;
  With(name, [signal](Job& job) { job.Signal(signal); });
}

void Jobs::Update(const std::string& name, const v1::JobUpdate& update) {
  const Job* job = Find(name);
  if (job == nullptr || state::HasEnded(job->view().job.phase())) return;
  v1::Record record;
  record.set_job(name);
  *record.mutable_job_updated() = update;
  context_.out.Commit(std::move(record));
  With(name, [](Job& changed) { changed.MarkDirty(true); });
  cluster_events_.changed.push_back(name);
}

void Jobs::Submit(const v1::JobSpec& spec, const std::string& user, const std::string& request_id,
                  const std::string& within, const v1::ArrayElements& array) {
  if (!MaySubmit(spec, user, array).ok()) return;
  const state::Job* batch = FindById(within);
  if (batch == nullptr && !within.empty()) return;
  saved::Submission submission;
  submission.set_user(user);
  submission.set_request_id(request_id);
  submission.set_held(spec.queue().held());
  if (array.indices().empty()) return SubmitOne(spec, std::move(submission), batch);
  submission.set_array(context_.state.counters.submitted() + 1);
  submission.set_array_at_once(array.at_once());
  submission.set_array_size(array.indices_size());
  submission.set_array_first(*array.indices().begin());
  submission.set_array_last(*array.indices().rbegin());
  for (const uint32_t index : array.indices()) {
    submission.set_array_index(index);
    SubmitOne(spec, submission, nullptr);
  }
}

void Jobs::SubmitOne(const v1::JobSpec& spec, saved::Submission submission,
                     const state::Job* batch) {
  const std::string user = submission.user();
  const uint64_t id = context_.state.counters.submitted() + 1;
  // A step does not take the name that its batch job was submitted with.
  const std::string wanted =
      batch == nullptr ? spec.name()
                       : absl::StrCat(batch->name(), "-s", batch->saved.submission().steps());
  const bool is_free = state::IsJobName(wanted) && IsNameFree(wanted, user);
  const std::string name = is_free ? wanted : NameWithId(wanted, id);
  saved::Job job;
  *job.mutable_spec() = spec;
  job.mutable_spec()->set_name(name);
  job.set_phase(v1::QUEUED);
  *job.mutable_submission() = std::move(submission);
  job.mutable_submission()->set_order(id);
  if (name != wanted) job.mutable_submission()->set_name(wanted);
  if (batch != nullptr) {
    job.mutable_submission()->set_step_of(batch->id());
    job.mutable_submission()->set_step(batch->saved.submission().steps());
  }
  Create(std::move(job));
  context_.out.Note(name, absl::StrCat("submitted by ", user, " as job ", id));
  With(name, [](Job& job) { job.MarkDirty(true); });
  cluster_events_.changed.push_back(name);
}

void Jobs::OnNodeGranted(const std::string& name) {
  With(name, [](Job& job) { job.OnNodeGranted(); });
}

void Jobs::OnLauncherEnded(const std::string& name, const std::string& node,
                           const std::string& how) {
  With(name, [&](Job& job) { job.OnLauncherEnded(node, how); });
}

void Jobs::OnCannotBegin(const std::string& name, const std::string& why, bool try_later) {
  With(name, [&](Job& job) { job.OnCannotBegin(why, try_later); });
}

void Jobs::EndLeases() {
  const MonoTime now = context_.clock.lease_now();
  std::vector<std::string> due;
  for (auto next = leases_.begin(); next != leases_.end() && next->first <= now; ++next) {
    due.push_back(next->second);
  }
  for (const std::string& name : due) With(name, [](Job& job) { job.EndLeases(); });
}

void Jobs::Advance() {
  for (auto next = deadlines_.begin();
       next != deadlines_.end() && next->first <= context_.clock.now(); ++next) {
    dirty_.insert(next->second);
  }
  while (!dirty_.empty()) {
    const std::string name = *dirty_.begin();
    dirty_.erase(dirty_.begin());
    With(name, [](Job& job) { job.Advance(); });
  }
}

namespace {

absl::Status CheckArray(const v1::ArrayElements& array) {
  if (array.indices_size() > static_cast<int>(kMaxArrayElements)) {
    return absl::InvalidArgumentError(absl::StrCat("the array has ", array.indices_size(),
                                                   " elements; at most ", kMaxArrayElements,
                                                   " are allowed: submit several arrays"));
  }
  for (int i = 1; i < array.indices_size(); ++i) {
    if (array.indices(i) <= array.indices(i - 1)) {
      return absl::InvalidArgumentError("the indices of an array must ascend");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Jobs::MaySubmit(const v1::JobSpec& spec, absl::string_view user,
                             const v1::ArrayElements& array) const {
  RETURN_IF_ERROR(CheckArray(array));
  const size_t elements = std::max(array.indices_size(), 1);
  absl::Status good = state::CheckSpec(spec);
  if (!good.ok()) return good;
  if (std::all_of(spec.name().begin(), spec.name().end(), absl::ascii_isdigit)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job name ", spec.name(), " would be taken for a job's id; use a name with a letter"));
  }
  if (spec.command().empty()) return absl::InvalidArgumentError("the spec has no command");
  if (spec.ByteSizeLong() > kMaxSubmittedSpecBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the spec has ", spec.ByteSizeLong(),
                                                   " bytes; a job that is submitted has at most ",
                                                   kMaxSubmittedSpecBytes));
  }
  if (user.empty() || user.size() > state::kMaxNodeTextBytes || HasControlCharacters(user)) {
    return absl::InvalidArgumentError(
        absl::StrCat("user name ", Quoted(user), " is not valid: it must be 1 to ",
                     state::kMaxNodeTextBytes, " bytes without control characters"));
  }
  if (!context_.config.only_job.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this endpoint is served by a launcher of job ", context_.config.only_job,
                     "; jobs are submitted to 'cadre server'"));
  }
  const state::State& state = context_.state;
  const std::string owner(user);
  if (state.by_user.NotEnded(owner) + elements > kMaxUnendedJobsOfUser) return TooManyOf(owner);
  RETURN_IF_ERROR(CheckSpecBytes(spec, elements, owner, state.by_user));
  if (state.jobs.size() - state.ended_jobs.size() + elements > kMaxUnendedJobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server has ", kMaxUnendedJobs, " jobs already"));
  }
  return absl::OkStatus();
}

namespace {

bool IsIndexed(const std::string& name, const state::Job& job, const state::State& state) {
  const auto by_id = state.by_id.find(job.id());
  const auto by_name = state.by_submitted_name.find(job.submitted_name());
  return by_id != state.by_id.end() && by_id->second == name &&
         by_name != state.by_submitted_name.end() && by_name->second.count(job.id()) == 1;
}

}  // namespace

absl::Status Jobs::CheckInvariants() const {
  const state::State& state = context_.state;
  if (jobs_.size() != state.jobs.size())
    return absl::InternalError("the jobs and their durable states do not match");
  size_t leases = 0, deadlines = 0, ids = 0, ids_by_name = 0;
  std::map<std::string, size_t> not_ended;
  std::map<std::string, state::JobsByUser::Bytes> bytes;
  for (const auto& [name, entry] : jobs_) {
    const JobView view = entry.job.view();
    RETURN_IF_ERROR(CheckJob(name, view));
    leases += !view.volatile_state.connections.all().empty();
    deadlines += view.volatile_state.deadline != MonoTime::Never();
    not_ended[view.job.owner()] += !state::HasEnded(view.job.phase());
    ids += view.job.id() != 0;
    if (view.job.id() != 0 && !IsIndexed(name, view.job, state)) {
      return absl::InternalError(absl::StrCat("job ", name, " is not found by its id or name"));
    }
    bytes[view.job.owner()].specs += view.job.spec_bytes;
    bytes[view.job.owner()].stores += view.job.store.all_bytes();
  }
  for (const auto& [name, of_name] : state.by_submitted_name) ids_by_name += of_name.size();
  if (ids != state.by_id.size() || ids != ids_by_name) {
    return absl::InternalError("a job that does not exist is found by its id or name");
  }
  if (leases != leases_.size()) return absl::InternalError("nodes and timers do not match");
  if (deadlines != deadlines_.size()) return absl::InternalError("jobs and deadlines do not match");
  for (const auto& [user, jobs] : not_ended) {
    if (state.by_user.NotEnded(user) != jobs) {
      return absl::InternalError(absl::StrCat("the jobs of ", user, " are miscounted"));
    }
    const state::JobsByUser::Bytes counted = state.by_user.BytesOf(user);
    if (counted.specs != bytes[user].specs || counted.stores != bytes[user].stores) {
      return absl::InternalError(absl::StrCat("the bytes of ", user, "'s jobs are miscounted"));
    }
  }
  if (!dirty_.empty()) return absl::InternalError("a job is still to be advanced after the step");
  return absl::OkStatus();
}

}  // namespace cadre::job
