// The Join of a node of a small job, for tests.
#ifndef CADRE_RENDEZVOUS_HOST_MESSAGES_FOR_TEST_H_
#define CADRE_RENDEZVOUS_HOST_MESSAGES_FOR_TEST_H_

#include <cstdint>
#include <functional>
#include <string>

#include "proto/rendezvous.pb.h"
#include "rpc/versions.h"

namespace cadre::host {

// A node of job "job", with two workers per node and a settle window of 20 ms.
inline v1::NodeMessage JoinForTest(const std::string& node, uint32_t min_nodes,
                                   uint32_t max_nodes) {
  v1::NodeMessage message;
  message.set_job("job");
  message.set_incarnation(std::hash<std::string>()(node));
  v1::Join* join = message.mutable_join();
  join->set_node(node);
  join->set_host(node);
  join->set_address("127.0.0.1");
  join->set_slots(2);
  join->set_wanted_node_rank(-1);
  join->set_held_port(29500);
  *join->mutable_version() = rpc::ThisVersion();
  v1::JobSpec* spec = join->mutable_spec();
  spec->set_name("job");
  spec->add_command("true");
  spec->mutable_nodes()->set_min(min_nodes);
  spec->mutable_nodes()->set_max(max_nodes);
  spec->mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec->mutable_workers_per_node()->set_count(2);
  spec->mutable_rendezvous()->mutable_join_timeout()->set_seconds(600);
  spec->mutable_rendezvous()->mutable_settle()->set_nanos(20000000);
  spec->mutable_timeouts()->mutable_start()->set_seconds(300);
  spec->mutable_timeouts()->mutable_stop_grace()->set_seconds(30);
  return message;
}

// A message of that node about generation 1, whose content the test adds.
inline v1::NodeMessage GenerationMessageForTest(const std::string& node) {
  v1::NodeMessage message;
  message.set_job("job");
  message.set_generation(1);
  message.set_incarnation(std::hash<std::string>()(node));
  return message;
}

// Requests a key of generation 1 and waits for it for an hour.
inline v1::StoreRequest GetForTest(const std::string& key, uint64_t request_id) {
  v1::StoreRequest request;
  request.set_job("job");
  request.set_generation(1);
  request.set_client(7);
  request.set_request_id(request_id);
  request.set_wait_ms(3600 * 1000);
  request.mutable_get()->set_key(key);
  return request;
}

inline v1::StoreRequest SetForTest(const std::string& key, const std::string& value,
                                   uint64_t request_id) {
  v1::StoreRequest request = GetForTest("", request_id);
  request.mutable_set()->set_key(key);
  request.mutable_set()->set_value(value);
  return request;
}

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_MESSAGES_FOR_TEST_H_
