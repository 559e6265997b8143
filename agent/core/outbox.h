// What the core wants done, in order. Pure; one thread.
#ifndef CADRE_AGENT_CORE_OUTBOX_H_
#define CADRE_AGENT_CORE_OUTBOX_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/command.h"
#include "base/generation_id.h"
#include "proto/rendezvous.pb.h"
#include "rpc/versions.h"

namespace cadre::agent {

class Outbox {
 public:
  Outbox(std::string job, uint64_t incarnation) : job_(std::move(job)), incarnation_(incarnation) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void Add(AgentCommand command) { commands_.push_back(std::move(command)); }

  // To the server, if it can be reached and is of a version that knows such a message.
  void Up(v1::NodeMessage message, const GenerationId& named) {
    if (!connected_ || silent_) return;
    if (message.has_imports() && !rpc::IsSince(server_, rpc::kImportsSince)) return;
    message.set_job(job_);
    SetGeneration(&message, named);
    message.set_incarnation(incarnation_);
    Add(SendUp{std::move(message)});
  }
  void set_connected(bool connected) { connected_ = connected; }
  // As its Welcome said.
  void set_server(const v1::Version& version) { server_ = version; }
  // The server hears nothing more: who leaves has said so, or cannot. That its workers die now is
  // nobody's failure.
  void Silence() { silent_ = true; }

  std::vector<AgentCommand> Take() { return std::exchange(commands_, {}); }

 private:
  const std::string job_;
  const uint64_t incarnation_;
  bool connected_ = false;
  v1::Version server_ = rpc::ThisVersion();
  bool silent_ = false;
  std::vector<AgentCommand> commands_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_OUTBOX_H_
