// Simulates agents of a cluster's nodes, launchers and users that talk to a core, and returns its
// orders as text.
#ifndef CADRE_RENDEZVOUS_TESTING_CLUSTER_RIG_H_
#define CADRE_RENDEZVOUS_TESTING_CLUSTER_RIG_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core.h"
#include "rpc/versions.h"

namespace cadre {

inline MonoTime Second(double s) { return MonoTime::FromMicros(static_cast<int64_t>(s * 1e6)); }

class ClusterRig : public testing::Test {
 protected:
  // Returns the orders to agents: "start 1 j on n0", "hold 2 j on n1", "stop 1". Also keeps all
  // records.
  std::vector<std::string> Orders(const Effects& effects) {
    records_.insert(records_.end(), effects.append.begin(), effects.append.end());
    EXPECT_EQ(core_->CheckInvariants().ToString(), "OK");
    std::vector<std::string> orders;
    for (const SendToStream& send : effects.send) {
      const v1::AgentOrder& order = send.message.agent();
      if (order.has_start()) {
        const v1::Part& part = order.start().part();
        orders.push_back(absl::StrCat(part.holds() ? "hold " : "start ", part.id(), " ", part.job(),
                                      " on ", part.node()));
      } else if (order.has_stop()) {
        orders.push_back(absl::StrCat("stop ", order.stop().id()));
      }
    }
    return orders;
  }
  Effects Step(double at, const Event& event) { return core_->Step(Second(at), event); }

  std::vector<std::string> Join(double at, uint64_t stream, const std::string& node,
                                std::vector<uint64_t> parts = {}, uint64_t memory = 0) {
    v1::NodeMessage message;
    message.set_incarnation(stream);
    v1::AgentJoined* joined = message.mutable_agent()->mutable_joined();
    joined->set_node(node);
    joined->set_cpus(4);
    joined->set_memory(memory);
    *joined->mutable_version() = rpc::ThisVersion();
    for (const uint64_t part : parts) joined->add_parts(part);
    return Orders(Step(at, NodeMessageReceived{StreamId{stream}, message}));
  }
  std::vector<std::string> Renew(double at, uint64_t stream) {
    v1::NodeMessage message;
    message.mutable_renew();
    return Orders(Step(at, NodeMessageReceived{StreamId{stream}, message}));
  }
  std::vector<std::string> Ended(double at, uint64_t stream, uint64_t part,
                                 v1::PartBlame blame = v1::BLAME_NODE) {
    v1::NodeMessage message;
    message.mutable_agent()->mutable_ended()->set_id(part);
    message.mutable_agent()->mutable_ended()->set_text("no user alice");
    message.mutable_agent()->mutable_ended()->set_blame(blame);
    return Orders(Step(at, NodeMessageReceived{StreamId{stream}, message}));
  }
  v1::NodeMessage LauncherJoin(uint64_t stream, const v1::JobSpec& spec, uint64_t part,
                               const std::string& node) {
    v1::NodeMessage message;
    message.set_job(spec.name());
    message.set_incarnation(stream);
    v1::Join* said = message.mutable_join();
    said->set_node(node);
    said->set_slots(4);
    said->set_part(part);
    said->set_address("127.0.0.1");
    *said->mutable_version() = rpc::ThisVersion();
    if (part == 0) *said->mutable_spec() = spec;
    return message;
  }
  // A node's launcher joins.
  void JoinJob(double at, uint64_t stream, const v1::JobSpec& spec, uint64_t part,
               const std::string& node) {
    Orders(Step(at, NodeMessageReceived{StreamId{stream}, LauncherJoin(stream, spec, part, node)}));
  }
  // Time passes in steps of 50 ms, as on a host that is never late.
  std::vector<std::string> Pass(double from, double until) {
    std::vector<std::string> all;
    for (double at = from; at <= until; at += 0.05) {
      for (std::string& order : Orders(Step(at, Tick{}))) all.push_back(std::move(order));
    }
    return all;
  }
  v1::JobSpec Spec(const std::string& name, uint32_t min, uint32_t max = 0) {
    v1::JobSpec spec;
    spec.set_name(name);
    spec.add_command("./train");
    spec.mutable_nodes()->set_min(min);
    spec.mutable_nodes()->set_max(max == 0 ? min : max);
    spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
    spec.mutable_workers_per_node()->set_count(4);
    return spec;
  }
  std::vector<std::string> Submit(double at, const v1::JobSpec& spec) {
    return Orders(Step(at, JobSubmitted{spec, "alice", ""}));
  }
  v1::JobPhase PhaseOf(const std::string& job) { return core_->Status(Second(100), job)->phase(); }
  // Simulates a server that was killed and restarts from its saved records.
  void RestartServer() {
    core_ = std::make_unique<Core>(CoreConfig());
    for (const v1::Record& record : records_) core_->Apply(record);
  }

  std::unique_ptr<Core> core_ = std::make_unique<Core>(CoreConfig());
  std::vector<v1::Record> records_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_CLUSTER_RIG_H_
