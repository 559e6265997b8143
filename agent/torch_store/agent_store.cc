#include "agent/torch_store/agent_store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/torch_store/listener.h"
#include "agent/torch_store/node_addresses.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

// Of the agent itself.
constexpr rlim_t kOtherDescriptors = 1024;

// As many connections as a store holds take more descriptors than a process has by default. Its
// workers are started by the supervisor, which has the limit that the launcher was started with.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, kMaxTorchConnections + kOtherDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentStore>> AgentStore::Open(const Options& options) {
  TorchStoreServer::Options server;
  ASSIGN_OR_RETURN(server.nodes, NodeAddresses::Make(options.address, options.nodes));
  ASSIGN_OR_RETURN(server.listener, ListenAt(options.address, options.port));
  std::unique_ptr<AgentStore> store(new AgentStore());
  server.say = [store = store.get()](std::string line) {
    absl::MutexLock lock(&store->mutex_);
    store->lines_.push_back(std::move(line));
  };
  ASSIGN_OR_RETURN(store->server_, TorchStoreServer::Make(std::move(server)));
  RaiseDescriptorLimit();
  store->thread_ = std::thread([store = store.get()] { store->Run(); });
  return store;
}

AgentStore::~AgentStore() {
  if (!thread_.joinable()) return;
  ends_ = true;
  server_->Wake();
  thread_.join();
}

void AgentStore::Run() {
  pthread_setname_np(pthread_self(), "torch-store");
  while (!ends_) {
    server_->Serve();
    if (stops_waits_.exchange(false)) server_->StopWaits();
  }
}

void AgentStore::StopWaits() {
  stops_waits_ = true;
  server_->Wake();
}

std::vector<std::string> AgentStore::TakeLines() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(lines_, {});
}

}  // namespace cadre::agent
