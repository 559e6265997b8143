// A caller of the server's store outside any stream, over a network that loses, repeats and
// reorders calls and their answers. It repeats a call until it is answered. One thread.
#ifndef CADRE_TESTS_SIMULATION_OUTSIDE_CLIENT_H_
#define CADRE_TESTS_SIMULATION_OUTSIDE_CLIENT_H_

#include <cstdint>
#include <string>

#include "tests/simulation/network.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/server.h"

namespace cadre::simulation {

class OutsideClient {
 public:
  OutsideClient(World& world, const Plan& plan, Network& network, Server& server, Oracle& oracle,
                std::string job);

  // Adds to a key of whatever generation is the newest, again and again, until the job has ended.
  void Start();

 private:
  void Next();
  void Send();
  void OnReply(const v1::StoreReply& reply);

  World& world_;
  const Plan& plan_;
  Network& network_;
  Server& server_;
  Oracle& oracle_;
  const std::string job_;
  const uint64_t client_;
  GenerationKey generation_;
  v1::StoreRequest request_;
  int64_t asked_ = 0;
  bool waits_ = false;
  int sent_ = 0;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_OUTSIDE_CLIENT_H_
