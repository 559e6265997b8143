#include "rendezvous/job/orders.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/duration.h"
#include "base/text.h"

namespace cadre::job {
namespace {

// How many different versions are listed; more would not be read.
constexpr size_t kMaxVersions = 4;
// The length of a command, which may have a thousand arguments.
constexpr size_t kMaxProgramText = 300;

// Returns what a node starts, in one line.
std::string ProgramText(const v1::JobSpec& spec) {
  return OneLine(absl::StrJoin(spec.command(), " "), kMaxProgramText);
}

// Returns "Python 3.11 on n1, n2; Python 3.12 on n3".
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

}  // namespace

int NodeRankOf(const state::Job& job, const std::string& node) {
  if (job.phase() == v1::QUEUED || job.phase() == v1::GATHERING) return -1;
  const auto found = job.generation.node_ranks.find(node);
  if (found == job.generation.node_ranks.end()) return -1;
  return job.generation.member(found->second).lost() ? -1 : static_cast<int>(found->second);
}

std::string DescribeNodeDifferences(const state::Job& job) {
  // An unknown version does not count as a different one.
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
    // Nodes that run the job's command have an empty program.
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

void SetRoleAndProgram(const v1::JobSpec& job, const v1::JobSpec& joining, saved::Node* node) {
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
  assign.set_versions_differ(DescribeNodeDifferences(job));
  for (const saved::Member& other : generation.saved.members()) {
    const auto node = job.nodes.find(other.node());
    // A node that is gone has no address any more.
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
  if (root != nullptr) stop.set_cause(root->cause());
  if (stop.rejoin() && root != nullptr && root->cause() == v1::HANG && root->node() == node) {
    stop.add_replace(root->local_rank());
  }
  return stop;
}

}  // namespace cadre::job
