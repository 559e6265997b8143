#include "agent/torch_store/agent_store.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/torch_store/torch_store_server.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::agent {
namespace {

// Descriptors that the agent needs for other purposes.
constexpr rlim_t kOtherDescriptors = 1024;

// A store's connections need more descriptors than a process has by default. Workers are not
// affected: the supervisor, which starts them, has the limit that the launcher was started with.
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
  server.report = [store = store.get()](std::string line) {
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

namespace {

// The kernel caps it at net.core.somaxconn.
constexpr int kBacklog = 16384;
// TCP keepalive: seconds until the first probe, between probes, and unanswered probes allowed.
constexpr int kIdle = 60, kBetween = 10, kProbes = 6;

void Set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

}  // namespace

absl::StatusOr<ScopedFd> ListenAt(const std::string& address, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  // No name is resolved.
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(address), " is not a numeric address"));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> at(found, freeaddrinfo);
  ScopedFd listener(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (listener.ok()) {
    const int fd = listener.get();
    Set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    // Accepted connections inherit these options.
    Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
    Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kBetween);
    Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return listener;
  }
  const int error = errno;
  const std::string text =
      absl::StrCat("cannot listen at ", address, ", port ", port, ": ", strerror(error));
  return error == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::UnavailableError(text);
}

uint16_t PortOf(const ScopedFd& listener) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

}  // namespace cadre::agent
