#include "rendezvous/job/report.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/duration.h"
#include "base/text.h"
#include "rendezvous/state/limits.h"
#include "rendezvous/state/policy.h"
#include "rpc/job_phase.h"
#include "rpc/limits.h"
#include "rpc/worker_end.h"

namespace cadre::job {
namespace {

constexpr size_t kMaxErrorJsonBytes = 64 << 10;
constexpr size_t kMaxEvidenceBytes = 512;
constexpr size_t kMaxPathBytes = 1024;
// Of a name that PyTorch's flight recorder tells.
constexpr size_t kMaxCallBytes = 128;
// Of so many different ones on the nodes nobody reads more.
constexpr size_t kMaxVersions = 4;
// Of a command, which may have a thousand arguments.
constexpr size_t kMaxProgramText = 300;

// No program fails with this: its agent found somebody else at the port where ranks were to meet.
bool IsTakenPort(const v1::WorkerExit& exit) { return exit.exec_errno() == EADDRINUSE; }

// `exit` says which port it is and, where the agent knows that, who has it.
std::string TakenPortText(const v1::WorkerExit& exit, const std::string& node) {
  const std::string taken =
      exit.ended_with().empty() ? absl::StrCat(exit.exec_step(), " is taken") : exit.ended_with();
  return absl::StrCat(OneLine(taken, kMaxEvidenceBytes), " on ", node,
                      ", so no worker was started there; give another --master-port, or none to "
                      "have a free one");
}

std::string ExecText(const state::Job& job, const v1::WorkerExit& exit) {
  const std::string error = ErrnoText(exit.exec_errno());
  if (exit.exec_step() == "chdir") {
    return absl::StrCat("cannot enter working directory ",
                        OneLine(job.saved.spec().working_dir(), 256), ": ", error);
  }
  const std::string program = job.saved.spec().command().empty()
                                  ? "the program"
                                  : OneLine(job.saved.spec().command(0), 256);
  if (exit.exec_step().empty() || exit.exec_step() == "exec") {
    return absl::StrCat("cannot start ", program, ": ", error);
  }
  return absl::StrCat("cannot start ", program, ": ", exit.exec_step(), ": ", error);
}

// No more of them than an agent sends, and nothing that must not reach a terminal.
void CleanCalls(v1::RankEvidence* rank) {
  if (rank->calls_size() > rpc::kProcessGroupsMax) rank->clear_calls();
  for (v1::ProcessGroupCalls& group : *rank->mutable_calls()) {
    if (group.calls_size() > rpc::kGroupCallsMax) group.clear_calls();
    group.set_group(OneLine(group.group(), kMaxCallBytes));
    group.set_description(OneLine(group.description(), kMaxCallBytes));
    if (group.messages_size() > rpc::kGroupCallsMax) group.clear_messages();
    for (v1::CollectiveCall& message : *group.mutable_messages()) message.clear_shape();
    if (group.ranks_size() > rpc::kGroupRanksMax) group.clear_ranks();
    for (v1::CollectiveCall& call : *group.mutable_calls()) {
      call.set_name(OneLine(call.name(), kMaxCallBytes));
      call.set_shape(OneLine(call.shape(), kMaxCallBytes));
    }
  }
}

std::string HowItEnded(const state::Job& job, const v1::Failure& failure) {
  const v1::WorkerExit& exit = failure.exit();
  if (failure.cause() == v1::EXEC_FAILED) return ExecText(job, exit);
  if (failure.cause() == v1::HANG) {
    const absl::Duration progress = FromProto(job.saved.spec().timeouts().progress());
    return progress > absl::ZeroDuration()
               ? absl::StrCat("made no progress for ", ShortDuration(progress))
               : "made no progress";
  }
  return failure.evidence_size() == 0 ? rpc::HowItEnded(exit, failure.cause())
                                      : rpc::HowItEnded(exit, failure.cause(), failure.evidence(0));
}

// What a node starts, in one line.
std::string ProgramText(const v1::JobSpec& spec) {
  return OneLine(absl::StrJoin(spec.command(), " "), kMaxProgramText);
}

// "Python 3.11 on n1, n2; Python 3.12 on n3".
std::string ByWhatTheyRun(std::map<std::string, std::vector<std::string>> nodes_by_it) {
  std::vector<std::string> parts;
  for (auto& [it, nodes] : nodes_by_it) {
    if (parts.size() == kMaxVersions) break;
    const size_t total = nodes.size();
    nodes.resize(std::min(total, kFirstFew));
    parts.push_back(absl::StrCat(it, " on ", FirstFew(nodes, total)));
  }
  return absl::StrJoin(parts, "; ");
}

std::string VersionsText(const v1::ProgramVersions& versions) {
  return absl::StrCat("Python ", versions.python().empty() ? "?" : versions.python(),
                      versions.torch().empty() ? "" : ", PyTorch ", versions.torch());
}

// Whether that has to do with the failure only a person can tell.
void AddNodesDiffer(const state::Job& job, v1::Failure* failure) {
  const std::string differ = NodesDiffer(job);
  if (differ.empty()) return;
  if (failure->evidence_size() >= state::kMaxEvidence) failure->mutable_evidence()->RemoveLast();
  v1::RankEvidence* const evidence = failure->add_evidence();
  evidence->set_rank(-1);
  evidence->set_local_rank(-1);
  evidence->set_summary(OneLine(differ, state::kMaxMessageBytes));
}

}  // namespace

v1::Failure WorkerFailure(const state::Job& job, const saved::Member& member,
                          const v1::WorkerExited& exited) {
  const uint32_t local_rank = exited.local_rank();
  const v1::WorkerExit& exit = exited.exit();
  const v1::FailureCause cause = exited.cause();
  v1::Failure failure;
  const bool said = cause != v1::FAILURE_CAUSE_UNSPECIFIED && v1::FailureCause_IsValid(cause);
  failure.set_cause(said                     ? cause
                    : exit.exec_errno() != 0 ? v1::EXEC_FAILED
                    : exit.out_of_memory()   ? v1::OUT_OF_MEMORY
                                             : v1::CRASH);
  failure.set_rank(member.first_rank() + local_rank);
  failure.set_local_rank(local_rank);
  failure.set_node(member.node());
  failure.set_generation(job.generation.number());
  *failure.mutable_exit() = exit;
  failure.mutable_exit()->set_exec_step(OneLine(exit.exec_step(), 64));
  failure.mutable_exit()->set_last_lines(Shortened(exit.last_lines(), kMaxLastLinesBytes));
  failure.mutable_exit()->set_ended_with(OneLine(exit.ended_with(), kMaxEvidenceBytes));
  // Half an error file is no JSON.
  if (exit.error_json().size() > kMaxErrorJsonBytes) failure.mutable_exit()->clear_error_json();
  if (exited.has_evidence()) {
    *failure.add_evidence() = CleanEvidence(exited.evidence(), member);
    failure.mutable_evidence(0)->set_local_rank(local_rank);
    failure.mutable_evidence(0)->set_rank(failure.rank());
  }
  const std::string who = rpc::WorkerName(failure.rank(), local_rank, member.node());
  const std::string how = HowItEnded(job, failure);
  failure.set_message(
      Shortened(IsTakenPort(exit) ? TakenPortText(exit, member.node())
                : failure.cause() == v1::EXEC_FAILED
                    ? absl::StrCat(who, ": ", how)
                    : absl::StrCat(who, " ", how, " in generation ", job.generation.number()),
                state::kMaxMessageBytes));
  return failure;
}

v1::RankEvidence CleanEvidence(const v1::RankEvidence& said, const saved::Member& member) {
  v1::RankEvidence rank = said;
  rank.set_rank(member.first_rank() + said.local_rank());
  rank.set_node(member.node());
  rank.set_summary(OneLine(said.summary(), kMaxEvidenceBytes));
  rank.set_state(OneLine(said.state(), 4));
  rank.set_wchan(OneLine(said.wchan(), 64));
  if (!v1::PythonActivity_IsValid(said.python())) rank.clear_python();
  rank.set_python_what(OneLine(said.python_what(), kMaxEvidenceBytes));
  rank.set_python_where(OneLine(said.python_where(), kMaxEvidenceBytes));
  rank.set_file(OneLine(said.file(), kMaxPathBytes));
  if (said.last_lines().size() > kMaxLastLinesBytes) rank.clear_last_lines();
  CleanCalls(&rank);
  return rank;
}

v1::Failure PlainFailure(v1::FailureCause cause, absl::string_view node, uint64_t generation,
                         absl::string_view message) {
  v1::Failure failure;
  failure.set_cause(cause);
  failure.set_rank(-1);
  failure.set_local_rank(-1);
  failure.set_node(std::string(node));
  failure.set_generation(generation);
  failure.set_message(OneLine(message, state::kMaxMessageBytes));
  return failure;
}

v1::Verdict MakeVerdict(const std::string& name, const state::Job& job, v1::JobPhase outcome,
                        int exit_status, absl::string_view message,
                        const std::optional<v1::Failure>& root_cause) {
  v1::Verdict verdict;
  verdict.set_job(name);
  verdict.set_outcome(outcome);
  verdict.set_message(Shortened(message, state::kMaxMessageBytes));
  verdict.set_exit_status(exit_status);
  if (root_cause.has_value()) *verdict.mutable_root_cause() = *root_cause;
  if (outcome == v1::FAILED && root_cause.has_value() && job.phase() != v1::GATHERING) {
    AddNodesDiffer(job, verdict.mutable_root_cause());
  }
  // A job that ends while it gathers has its last generation among the earlier ones.
  if (job.phase() != v1::GATHERING && root_cause.has_value()) {
    *verdict.mutable_collateral() = job.generation.saved.stop().collateral();
  }
  *verdict.mutable_earlier() = job.saved.earlier();
  verdict.set_restarts(job.saved.restarts().counted());
  verdict.set_generations(job.saved.generations());
  verdict.set_run(job.saved.run());
  return verdict;
}

std::string EndText(const v1::Verdict& verdict) {
  return absl::StrCat("ended (", rpc::PhaseName(verdict.outcome()), ")",
                      verdict.message().empty() ? "" : ": ", verdict.message());
}

int NodeRankOf(const state::Job& job, const std::string& node) {
  if (job.phase() == v1::QUEUED || job.phase() == v1::GATHERING) return -1;
  const auto found = job.generation.node_ranks.find(node);
  if (found == job.generation.node_ranks.end()) return -1;
  return job.generation.member(found->second).lost() ? -1 : static_cast<int>(found->second);
}

v1::Record WorkerEnded(const state::Job& job, uint32_t rank,
                       const std::optional<v1::Failure>& failure, MonoTime at) {
  v1::Record record;
  record.mutable_worker_ended()->set_generation(job.generation.number());
  record.mutable_worker_ended()->set_rank(rank);
  if (failure.has_value()) *record.mutable_worker_ended()->mutable_failure() = *failure;
  record.mutable_worker_ended()->set_at_us(at.micros());
  return record;
}

v1::Record NodeCleared(const std::string& node, uint64_t generation, uint32_t held_port,
                       MonoTime at) {
  v1::Record record;
  record.mutable_node_cleared()->set_generation(generation);
  record.mutable_node_cleared()->set_node(node);
  record.mutable_node_cleared()->set_held_port(held_port <= 65535 ? held_port : 0);
  record.mutable_node_cleared()->set_at_us(at.micros());
  return record;
}

std::string NodesDiffer(const state::Job& job) {
  // Where one is not known it is not another one.
  std::set<std::string> pythons, torches;
  std::map<std::string, std::vector<std::string>> nodes_by_versions, nodes_by_program;
  for (const saved::Member& member : job.generation.saved.members()) {
    const auto found = job.nodes.find(member.node());
    if (found == job.nodes.end()) continue;
    const saved::Node& node = found->second.node();
    nodes_by_program[node.program()].push_back(member.node());
    if (!node.has_versions()) continue;
    const v1::ProgramVersions& versions = node.versions();
    if (!versions.python().empty()) pythons.insert(versions.python());
    if (!versions.torch().empty()) torches.insert(versions.torch());
    nodes_by_versions[VersionsText(versions)].push_back(member.node());
  }
  std::vector<std::string> differ;
  if (nodes_by_program.size() > 1) {
    // Its own is not said of a node that runs what the job does.
    auto as_the_job = nodes_by_program.extract("");
    if (!as_the_job.empty()) {
      as_the_job.key() = ProgramText(job.saved.spec());
      nodes_by_program.insert(std::move(as_the_job));
    }
    differ.push_back(absl::StrCat("the nodes run different commands: ",
                                  ByWhatTheyRun(std::move(nodes_by_program))));
  }
  if (pythons.size() > 1 || torches.size() > 1) {
    differ.push_back(absl::StrCat("the program runs under different versions: ",
                                  ByWhatTheyRun(std::move(nodes_by_versions))));
  }
  return absl::StrJoin(differ, "; ");
}

void AddWhatDiffers(const v1::JobSpec& job, const v1::JobSpec& joining, saved::Node* node) {
  if (joining.role() != job.role()) node->set_role(joining.role());
  if (!std::equal(job.command().begin(), job.command().end(), joining.command().begin(),
                  joining.command().end())) {
    node->set_program(ProgramText(joining));
  }
}

std::vector<RolePlace> RolePlaces(const state::Job& job) {
  std::vector<RolePlace> places;
  std::vector<const std::string*> roles;
  std::map<std::string, uint32_t> sizes;
  for (const saved::Member& member : job.generation.saved.members()) {
    const auto node = job.nodes.find(member.node());
    const bool own = node != job.nodes.end() && !node->second.node().role().empty();
    roles.push_back(own ? &node->second.node().role() : &job.saved.spec().role());
    uint32_t& size = sizes[*roles.back()];
    places.push_back({size, 0});
    size += member.slots();
  }
  if (sizes.size() < 2) return {};
  for (size_t i = 0; i < places.size(); ++i) places[i].world_size = sizes[*roles[i]];
  return places;
}

void SetRole(const std::vector<RolePlace>& places, uint32_t node_rank, v1::Assign* assign) {
  if (places.empty()) return;
  assign->set_role_first_rank(places[node_rank].first_rank);
  assign->set_role_world_size(places[node_rank].world_size);
}

v1::Assign MakeAssign(const state::Job& job, uint32_t node_rank) {
  const state::Generation& generation = job.generation;
  const saved::Member& member = generation.member(node_rank);
  v1::Assign assign;
  assign.set_node_rank(node_rank);
  assign.set_nodes(generation.nodes());
  assign.set_first_rank(member.first_rank());
  assign.set_local_world_size(member.slots());
  assign.set_world_size(generation.world_size());
  assign.set_master_addr(generation.saved.master_addr());
  assign.set_master_port(generation.saved.master_port());
  assign.set_restart_count(generation.saved.restart_count());
  assign.set_max_restarts(job.policy.restart_max);
  assign.set_run(job.saved.run());
  if (node_rank != 0) return assign;
  assign.set_versions_differ(NodesDiffer(job));
  for (const saved::Member& other : generation.saved.members()) {
    const auto node = job.nodes.find(other.node());
    // One that is gone has none any more.
    assign.add_node_addresses(node == job.nodes.end() ? "" : node->second.node().address());
  }
  return assign;
}

v1::Stop MakeStop(const state::Job& job, const std::string& node) {
  v1::Stop stop;
  stop.set_reason(job.generation.saved.stop().reason());
  *stop.mutable_grace() = ToProto(job.policy.stop_grace);
  stop.set_rejoin(job.generation.saved.stop().rejoin());
  const v1::Failure* root = job.generation.root_cause();
  if (stop.rejoin() && root != nullptr && root->cause() == v1::HANG && root->node() == node) {
    stop.add_replace(root->local_rank());
  }
  return stop;
}

}  // namespace cadre::job
