#include "rendezvous/job/job_records.h"

#include "rendezvous/job/orders.h"

namespace cadre::job {

v1::Record NodeAdmitted(const state::Job& job, const v1::NodeMessage& message) {
  const v1::Join& join = message.join();
  v1::Record record;
  v1::NodeAdmitted* admitted = record.mutable_node_admitted();
  saved::Node* node = admitted->mutable_node();
  node->set_name(join.node());
  node->set_host(join.host().empty() ? join.node() : join.host());
  node->set_address(join.address());
  node->set_slots(join.slots());
  node->set_incarnation(message.incarnation());
  node->set_wanted_node_rank(join.wanted_node_rank());
  node->set_held_port(join.held_port());
  node->set_master_addr(join.master_addr());
  node->set_master_port(join.master_port());
  if (join.has_versions()) *node->mutable_versions() = join.versions();
  if (join.has_spec()) SetRoleAndProgram(job.saved.spec(), join.spec(), node);
  if (join.has_adopt_timeout()) *node->mutable_adopt_timeout() = join.adopt_timeout();
  // The first list of expected nodes is kept for the job.
  if (job.saved.expected_nodes().empty()) {
    *admitted->mutable_expected_nodes() = join.expected_nodes();
  }
  admitted->set_part(join.part());
  return record;
}

v1::Record NodeRemoved(const std::string& node, v1::FailureCause cause, v1::NodeRemoved::How how,
                       const std::string& reason) {
  v1::Record record;
  record.mutable_node_removed()->set_node(node);
  record.mutable_node_removed()->set_cause(cause);
  record.mutable_node_removed()->set_how(how);
  record.mutable_node_removed()->set_reason(reason);
  return record;
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

}  // namespace cadre::job
