#include "rendezvous/testing/test_messages.h"

#include "rpc/versions.h"

namespace cadre {

v1::NodeMessage MessageFrom(const Sender& sender) {
  v1::NodeMessage message;
  message.set_job(sender.job);
  message.set_generation(sender.generation);
  message.set_incarnation(sender.incarnation);
  return message;
}

v1::NodeMessage JoinFrom(const Sender& sender, const v1::JobSpec& spec, uint32_t slots) {
  v1::NodeMessage message = MessageFrom(sender);
  v1::Join* join = message.mutable_join();
  join->set_node(sender.node);
  join->set_host(sender.node);
  join->set_address(sender.node);
  join->set_slots(slots);
  join->set_wanted_node_rank(-1);
  *join->mutable_spec() = spec;
  *join->mutable_version() = rpc::ThisVersion();
  return message;
}

v1::NodeMessage StartedFrom(const Sender& sender, uint32_t local_rank) {
  v1::NodeMessage message = MessageFrom(sender);
  message.mutable_worker_started()->set_local_rank(local_rank);
  message.mutable_worker_started()->set_pid(100 + local_rank);
  return message;
}

v1::NodeMessage ExitedFrom(const Sender& sender, uint32_t local_rank, int code, int signal) {
  v1::NodeMessage message = MessageFrom(sender);
  v1::WorkerExited* exited = message.mutable_worker_exited();
  exited->set_local_rank(local_rank);
  exited->mutable_exit()->set_exit_code(code);
  exited->mutable_exit()->set_signal(signal);
  if (code != 0 || signal != 0) exited->set_cause(v1::CRASH);
  return message;
}

v1::NodeMessage StoppedFrom(const Sender& sender) {
  v1::NodeMessage message = MessageFrom(sender);
  message.mutable_node_stopped();
  return message;
}

v1::NodeMessage UnkillableFrom(const Sender& sender, uint32_t local_rank, int pid,
                               const std::string& wchan) {
  v1::NodeMessage message = MessageFrom(sender);
  message.mutable_worker_remains()->set_local_rank(local_rank);
  v1::RemainingProcess* process = message.mutable_worker_remains()->add_processes();
  process->set_pid(pid);
  process->set_state("D");
  process->set_wchan(wchan);
  return message;
}

v1::JobSpec SpecOf(const std::string& job, uint32_t min, uint32_t max, uint32_t restarts) {
  v1::JobSpec spec;
  spec.set_name(job);
  spec.add_command("./train");
  spec.mutable_nodes()->set_min(min);
  spec.mutable_nodes()->set_max(max);
  spec.mutable_restart()->set_max(restarts);
  return spec;
}

}  // namespace cadre
