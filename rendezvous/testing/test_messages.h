// What nodes say, for tests: each message of rendezvous.proto in one call.
#ifndef CADRE_RENDEZVOUS_TESTING_TEST_MESSAGES_H_
#define CADRE_RENDEZVOUS_TESTING_TEST_MESSAGES_H_

#include <cstdint>
#include <string>

#include "proto/rendezvous.pb.h"

namespace cadre {

// Who speaks, and of which generation.
struct Speaker {
  std::string job;
  std::string node;
  uint64_t incarnation = 1;
  uint64_t generation = 0;
};

v1::NodeMessage MessageFrom(const Speaker& speaker);
// The node's host and address are its name; its ports and wishes are unset.
v1::NodeMessage JoinFrom(const Speaker& speaker, const v1::JobSpec& spec, uint32_t slots);
v1::NodeMessage StartedFrom(const Speaker& speaker, uint32_t local_rank);
v1::NodeMessage ExitedFrom(const Speaker& speaker, uint32_t local_rank, int code, int signal);
v1::NodeMessage StoppedFrom(const Speaker& speaker);
// The worker's process `pid` outlives SIGKILL in this function of the kernel.
v1::NodeMessage RemainsFrom(const Speaker& speaker, uint32_t local_rank, int pid,
                            const std::string& wchan);

v1::JobSpec SpecOf(const std::string& job, uint32_t min, uint32_t max, uint32_t restarts);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_TEST_MESSAGES_H_
