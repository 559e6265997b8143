// Collects the commands of one step of the agent core, in order. Pure; one thread.
#ifndef CADRE_AGENT_CORE_COMMAND_BUFFER_H_
#define CADRE_AGENT_CORE_COMMAND_BUFFER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/agent_core.h"
#include "base/generation_id.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

class CommandBuffer {
 public:
  CommandBuffer(std::string job, uint64_t incarnation)
      : job_(std::move(job)), incarnation_(incarnation) {}
  CommandBuffer(const CommandBuffer&) = delete;
  CommandBuffer& operator=(const CommandBuffer&) = delete;

  void Add(AgentCommand command) { commands_.push_back(std::move(command)); }

  // Sends to the server if it is connected. The message names this generation.
  void Send(v1::NodeMessage message, const GenerationId& generation) {
    if (!connected_ || leaving_) return;
    message.set_job(job_);
    SetGeneration(&message, generation);
    message.set_incarnation(incarnation_);
    Add(SendToServer{std::move(message)});
  }
  void set_connected(bool connected) { connected_ = connected; }
  // Nothing more is sent to the server: an agent that leaves has told it so, or cannot. The deaths
  // of its workers from now on are not failures.
  void StopSending() { leaving_ = true; }

  std::vector<AgentCommand> Take() { return std::exchange(commands_, {}); }

 private:
  const std::string job_;
  const uint64_t incarnation_;
  bool connected_ = false;
  bool leaving_ = false;
  std::vector<AgentCommand> commands_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_COMMAND_BUFFER_H_
