// Accepts connections in gRPC's place, which stops accepting for good when it once runs out of
// descriptors, and lets everybody hold as many connections as there is memory for. What is accepted
// and has not shown a token in time is closed; see newcomers.h.
#ifndef CADRE_RENDEZVOUS_SERVICE_ACCEPTOR_H_
#define CADRE_RENDEZVOUS_SERVICE_ACCEPTOR_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "rendezvous/service/newcomers.h"

namespace cadre::service {

struct AcceptorOptions {
  std::string host;
  int port = 0;
  // Connections without a token: how many there may be (each takes two descriptors), and for how
  // long. Twice as many as the largest job has nodes.
  size_t most_newcomers = 8192;
  absl::Duration patience = absl::Seconds(20);
  // Each connection is given away once it has said something.
  bool awaits_first_byte = false;
};

// Of grpc::ServerContext::peer(), "ipv4:10.0.0.1:29400" or "ipv6:%5Bfe80::1%252%5D:29400", as the
// acceptor has it: without the zone ("%2"). nullopt: it is neither.
std::optional<Peer> PeerOf(const std::string& context_peer);

// Thread safe but for Start and Stop.
class Acceptor {
 public:
  // Listens when it returns; nobody is accepted before Start. Errors as CheckListen.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const AcceptorOptions& options);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }

  // `take` gets each connection, on a thread of the acceptor's, with the first byte that can be
  // read of it where that is awaited, else 0. Once.
  void Start(std::function<void(ScopedFd, char)> take);

  // Accepts nobody any more; the port is free. What was accepted stays as it is. Idempotent.
  void Stop();

  // This caller has shown a token.
  void Admit(const Peer& peer);

 private:
  Acceptor(const AcceptorOptions& options, std::vector<ScopedFd> listeners, int port);

  void Run();
  int MillisToNextDeadline();
  void Accept(int listener);
  // Of a connection that is held: it has said something, or has ended.
  void Hear(int held);
  // Where its first byte is awaited it is taken. False: there is no descriptor to hold it by.
  bool Hold(const Peer& peer, ScopedFd* connection);
  // An eighth of the newcomers, and one at least. False: there is none.
  bool DropOldest();
  // Descriptors have run out: a newcomer makes room, or whoever comes next is refused.
  void MakeRoom(int listener);
  void RefuseOne(int listener);
  // Until somebody calls, or the pause is over.
  void Pause();
  void DropOverdue();
  // The connection ends, for both sides.
  void Drop(const Peer& peer);
  // It is not a newcomer any more, and gRPC's alone.
  void LetGo(const Peer& peer);

  std::vector<ScopedFd> listeners_;
  const int port_;
  const ScopedFd epoll_;
  const ScopedFd wake_;
  // Given up for a moment to accept one that is then refused.
  ScopedFd reserve_;
  const bool awaits_first_byte_;
  std::function<void(ScopedFd, char)> take_;

  std::mutex mutex_;
  Newcomers newcomers_;
  // A second descriptor of each newcomer's connection: gRPC closes its own when it likes.
  std::map<Peer, ScopedFd> held_;
  std::map<int, Peer> peers_;
  // By the second descriptor: connections that have said nothing yet.
  std::map<int, ScopedFd> silent_;

  std::thread thread_;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_ACCEPTOR_H_
