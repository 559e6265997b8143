#include "rendezvous/testing/test_messages.h"

#include "rpc/versions.h"

namespace cadre {

v1::NodeMessage MessageFrom(const Speaker& speaker) {
  v1::NodeMessage message;
  message.set_job(speaker.job);
  message.set_generation(speaker.generation);
  message.set_incarnation(speaker.incarnation);
  return message;
}

v1::NodeMessage JoinFrom(const Speaker& speaker, const v1::JobSpec& spec, uint32_t slots) {
  v1::NodeMessage message = MessageFrom(speaker);
  v1::Join* join = message.mutable_join();
  join->set_node(speaker.node);
  join->set_host(speaker.node);
  join->set_address(speaker.node);
  join->set_slots(slots);
  join->set_wanted_node_rank(-1);
  *join->mutable_spec() = spec;
  *join->mutable_version() = rpc::ThisVersion();
  return message;
}

v1::NodeMessage StartedFrom(const Speaker& speaker, uint32_t local_rank) {
  v1::NodeMessage message = MessageFrom(speaker);
  message.mutable_worker_started()->set_local_rank(local_rank);
  message.mutable_worker_started()->set_pid(100 + local_rank);
  return message;
}

v1::NodeMessage ExitedFrom(const Speaker& speaker, uint32_t local_rank, int code, int signal) {
  v1::NodeMessage message = MessageFrom(speaker);
  v1::WorkerExited* exited = message.mutable_worker_exited();
  exited->set_local_rank(local_rank);
  exited->mutable_exit()->set_exit_code(code);
  exited->mutable_exit()->set_signal(signal);
  if (code != 0 || signal != 0) exited->set_cause(v1::CRASH);
  return message;
}

v1::NodeMessage StoppedFrom(const Speaker& speaker) {
  v1::NodeMessage message = MessageFrom(speaker);
  message.mutable_node_stopped();
  return message;
}

v1::NodeMessage RemainsFrom(const Speaker& speaker, uint32_t local_rank, int pid,
                            const std::string& wchan) {
  v1::NodeMessage message = MessageFrom(speaker);
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
