// Measures what a submission costs the core of a server with a long queue: jobs that can never run
// on the cluster's nodes are submitted one after another, and the time of each thousand is printed.
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rendezvous/core/core.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

constexpr int kNodes = 100;
constexpr int kUsers = 10;
constexpr int kJobsOfUser = 1000;

v1::JobSpec Spec(const std::string& name, uint32_t nodes) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.add_command("./train");
  spec.mutable_nodes()->set_min(nodes);
  spec.mutable_nodes()->set_max(nodes);
  spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec.mutable_workers_per_node()->set_count(4);
  return spec;
}

void Run() {
  Core core{CoreConfig()};
  for (uint64_t node = 1; node <= kNodes; ++node) {
    v1::NodeMessage message;
    message.set_incarnation(1);
    message.mutable_agent()->mutable_joined()->set_node(absl::StrCat("n", node));
    message.mutable_agent()->mutable_joined()->set_cpus(8);
    *message.mutable_agent()->mutable_joined()->mutable_version() = rpc::ThisVersion();
    core.Step(MonoNow(), NodeMessageReceived{StreamId{node}, message});
  }
  printf("%d nodes\n", kNodes);
  for (int user = 0; user < kUsers; ++user) {
    const MonoTime before = MonoNow();
    for (int i = 0; i < kJobsOfUser; ++i) {
      const v1::JobSpec spec = Spec(absl::StrCat("u", user, "-", i), kNodes + 1);
      core.Step(MonoNow(), JobSubmitted{spec, absl::StrCat("u", user), ""});
    }
    printf("%6d jobs queued: %8.1f us a submission\n", (user + 1) * kJobsOfUser,
           absl::ToDoubleMicroseconds(MonoNow() - before) / kJobsOfUser);
  }
  const MonoTime before = MonoNow();
  core.AllStatuses(MonoNow());
  printf("a list of all: %.1f ms\n", absl::ToDoubleMilliseconds(MonoNow() - before));
}

}  // namespace
}  // namespace cadre

int main() { cadre::Run(); }
