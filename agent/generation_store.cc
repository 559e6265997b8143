#include "agent/generation_store.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/torch_store/agent_store.h"
#include "agent/torch_store/torch_store_server.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// Earlier versions send no VALIDATE.
constexpr TorchVersion kFirstWithHandshake = {2, 1};

// Short, because the thread that begins a generation also renews the node's lease. Longer than
// kFileTaskHungAfter: after it the files are known not to answer, and the next generation does not
// wait again.
constexpr absl::Duration kFilesLimit = absl::Milliseconds(1100);

// The variable's value in the workers' environment.
std::string VariableOf(const WorkerEnvironmentOptions& environment, const std::string& name) {
  const auto& own = environment.spec.env();
  if (const auto found = own.find(name); found != own.end()) return found->second;
  for (const std::string& entry : environment.base) {
    if (entry.size() > name.size() && entry[name.size()] == '=' &&
        entry.compare(0, name.size(), name) == 0) {
      return entry.substr(name.size() + 1);
    }
  }
  return "";
}

// Whether the store is turned off whatever PyTorch version the workers import.
bool IsTurnedOff(const WorkerEnvironmentOptions& environment, absl::Duration adopt_timeout) {
  const v1::JobSpec& spec = environment.spec;
  return (spec.has_agent_store() && !spec.agent_store()) || adopt_timeout > absl::ZeroDuration() ||
         // The variable with which torchrun turns it off.
         VariableOf(environment, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1";
}

std::optional<TorchVersion> TorchOf(const WorkerEnvironmentOptions& environment) {
  const v1::JobSpec& spec = environment.spec;
  const auto variable = [&environment](const std::string& name) {
    return VariableOf(environment, name);
  };
  const std::vector<std::string> command(spec.command().begin(), spec.command().end());
  // Without the start hook PyTorch takes any address for the agent's
  // (supervisor/warm/own_ranks.py).
  if (!RunsStartHook(command, spec.working_dir(), variable)) return std::nullopt;
  return TorchVersionOf(command, spec.working_dir(), variable);
}

absl::StatusOr<std::unique_ptr<AgentStore>> OpenStore(const v1::Assign& assign) {
  if (assign.node_addresses_size() != static_cast<int>(assign.nodes())) {
    return absl::FailedPreconditionError("the server did not send the addresses of the nodes");
  }
  // Workers that connect over another network would come from addresses that are not in the list.
  if (assign.node_addresses(0) != assign.master_addr()) {
    return absl::FailedPreconditionError(absl::StrCat("MASTER_ADDR ", Quoted(assign.master_addr()),
                                                      " is not the address of rank 0's node, ",
                                                      assign.node_addresses(0)));
  }
  AgentStore::Options options;
  options.address = assign.master_addr();
  options.port = static_cast<uint16_t>(assign.master_port());
  options.nodes = {assign.node_addresses().begin(), assign.node_addresses().end()};
  return AgentStore::Open(options);
}

}  // namespace

bool WantsAgentStore(const WorkerEnvironmentOptions& environment, absl::Duration adopt_timeout,
                     const std::optional<TorchVersion>& torch) {
  if (IsTurnedOff(environment, adopt_timeout)) return false;
  return torch.has_value() && !(*torch < kFirstWithHandshake);
}

bool MasterPortIsTaken(const v1::Assign& assign) {
  const auto port = static_cast<uint16_t>(assign.master_port());
  absl::Status status = ListenAt(assign.master_addr(), port).status();
  // MASTER_ADDR is a host name: rank 0 then serves at all addresses.
  if (absl::IsInvalidArgument(status)) status = ListenAt("0.0.0.0", port).status();
  return absl::IsAlreadyExists(status);
}

void GenerationStore::Begin(WorkerEnvironmentOptions* environment) {
  End();
  taken_ = false;
  environment->agent_store = false;
  if (IsTurnedOff(*environment, adopt_timeout_)) return;
  const v1::Assign& assign = environment->assign;
  const std::optional<std::optional<TorchVersion>> torch =
      files_.ResultWithin(kFilesLimit, [copy = *environment] { return TorchOf(copy); });
  if (!torch.has_value()) {
    if (assign.node_rank() == 0) {
      LeaveToRankZero("the file system of the program's Python packages does not answer");
    }
    return;
  }
  environment->agent_store = WantsAgentStore(*environment, adopt_timeout_, *torch);
  if (!environment->agent_store) return;
  if (assign.node_rank() != 0) {
    environment->agent_store = NodeAddresses::Make(assign.master_addr(), {}).ok();
    return;
  }
  absl::StatusOr<std::unique_ptr<AgentStore>> store = OpenStore(assign);
  environment->agent_store = store.ok();
  taken_ = absl::IsAlreadyExists(store.status());
  if (!store.ok()) return LeaveToRankZero(store.status().message());
  store_ = *std::move(store);
}

void GenerationStore::LeaveToRankZero(absl::string_view why) {
  display_.Line(absl::StrCat("rank 0 serves PyTorch's store, because its agent cannot: ", why));
}

void GenerationStore::StopWaits() {
  if (store_ != nullptr) store_->StopWaits();
}

void GenerationStore::End() {
  Poll();
  store_.reset();
}

void GenerationStore::Poll() {
  if (store_ == nullptr) return;
  for (const std::string& line : store_->TakeLines()) display_.Line(line);
}

}  // namespace cadre::agent
