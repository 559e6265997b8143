// Messages of nodes, for tests: each message of rendezvous.proto in one call.
#ifndef CADRE_RENDEZVOUS_TESTING_TEST_MESSAGES_H_
#define CADRE_RENDEZVOUS_TESTING_TEST_MESSAGES_H_

#include <cstdint>
#include <string>

#include "proto/rendezvous.pb.h"

namespace cadre {

// The sender, and its generation.
struct Sender {
  std::string job;
  std::string node;
  uint64_t incarnation = 1;
  uint64_t generation = 0;
};

v1::NodeMessage MessageFrom(const Sender& sender);
// The node's host and address are its name; its ports and requested rank are unset.
v1::NodeMessage JoinFrom(const Sender& sender, const v1::JobSpec& spec, uint32_t slots);
v1::NodeMessage StartedFrom(const Sender& sender, uint32_t local_rank);
v1::NodeMessage ExitedFrom(const Sender& sender, uint32_t local_rank, int code, int signal);
v1::NodeMessage StoppedFrom(const Sender& sender);
// The worker's process `pid` survives SIGKILL, in this kernel function.
v1::NodeMessage UnkillableFrom(const Sender& sender, uint32_t local_rank, int pid,
                               const std::string& wchan);

v1::JobSpec SpecOf(const std::string& job, uint32_t min, uint32_t max, uint32_t restarts);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_TEST_MESSAGES_H_
