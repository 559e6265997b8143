// What jobs can be held to on this machine, for people. Looks at the machine as it is for this
// process; any thread.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CONTAINABLE_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CONTAINABLE_H_

#include <string>

namespace cadre::supervisor {

// Why not, each; empty: an agent of root can.
struct Containable {
  std::string devices;
  std::string memory;
  std::string pids;
};

Containable WhatCanBeContained();

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CONTAINABLE_H_
