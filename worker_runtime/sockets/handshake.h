// Proves on a connection between two ranks that both know the same key. Each side answers the
// other's random bytes with a keyed digest (HMAC-SHA256) of them and of the connection's purpose. A
// last byte tells the connecting side that it was accepted. The key never crosses the network, and
// a recorded handshake is useless for another connection. Each side also states, covered by the
// proof, whether it will encrypt. Pure.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_HANDSHAKE_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// The use of a connection.
enum class Purpose : uint32_t { kControl = 1, kCollectives = 2, kMessages = 3, kStore = 4 };

// Stands for the accepting rank where that is the store's server, which is no rank.
inline constexpr int kStoreRank = -1;

// The number of random bytes that each side sends.
inline constexpr size_t kNonceBytes = 16;

// What must be equal on both sides.
struct HandshakeParameters {
  std::string key;
  bool encrypts = false;
};

// One side of a handshake: send what output() holds and give Receive() exactly wanted() bytes,
// until is_done(). One thread.
class Handshake {
 public:
  // The connecting side, which knows the peer's rank. `nonce` has kNonceBytes random bytes.
  static Handshake Call(HandshakeParameters parameters, int own_rank, int peer, Purpose purpose,
                        std::string nonce);
  // The accepting side. It accepts ranks above its own (kStoreRank is below all) and below `size`.
  static Handshake Answer(HandshakeParameters parameters, int own_rank, int size,
                          std::string nonce);

  // Bytes to be sent now. The sender erases what it has sent.
  std::string& output() { return output_; }
  // The number of bytes that Receive() takes next; 0 if it takes no more.
  size_t wanted() const { return wanted_; }
  // PERMISSION_DENIED: the other side does not know the key. INVALID_ARGUMENT: it does not speak
  // this protocol, or wants to reach another rank.
  Status Receive(absl::string_view bytes);
  // Both sides are authenticated once this is true and output() has been sent.
  bool is_done() const { return wanted_ == 0; }

  // The peer and the purpose. On the accepting side both are known once is_done().
  int peer() const { return peer_; }
  Purpose purpose() const { return purpose_; }
  // FAILED_PRECONDITION: one side encrypts and the other does not; the text names both.
  Status CheckEncryption() const;
  // Returns the keys of this connection, with the two directions swapped on the peer; nullopt if
  // the connection is not encrypted. Valid once is_done() and if CheckEncryption() returns OK.
  std::optional<wire::RecordKeys> MakeRecordKeys() const;

 private:
  Handshake(HandshakeParameters parameters, std::string nonce);

  Status ReceiveHello(absl::string_view bytes);
  Status ReceiveChallenge(absl::string_view bytes);
  Status ReceiveProof(absl::string_view bytes);
  Status ReceiveWelcome(absl::string_view bytes);
  std::string ProofOf(absl::string_view side) const;

  enum class Step { kHello, kChallenge, kProof, kWelcome };

  const HandshakeParameters parameters_;
  std::string own_nonce_;
  Step step_ = Step::kHello;
  bool initiates_ = false;
  int own_rank_ = -1;
  int size_ = 0;
  int peer_ = -1;
  Purpose purpose_ = Purpose::kControl;
  bool peer_encrypts_ = false;
  std::string hello_;      // as it was sent
  std::string challenge_;  // the accepting side's nonce, and whether it encrypts
  std::string output_;
  size_t wanted_ = 0;
};

// Runs a handshake on a non-blocking socket.

// Returns kNonceBytes random bytes for one handshake. INTERNAL: the kernel provides none.
Result<std::string> HandshakeNonce();

enum class Progress {
  kWaits,    // for writing while the handshake has output, else for reading
  kDone,     // both sides are authenticated
  kLost,     // the connection has ended
  kRefused,  // the other side violated the protocol or lacks the key
};
struct HandshakeResult {
  Progress progress = Progress::kWaits;
  int error = 0;   // for kLost: errno; 0: the other side closed it
  Status refusal;  // for kRefused: the error of Handshake::Receive()
};

// Advances the handshake as far as possible without blocking, and reads no byte beyond it.
// `received` holds partial input between two calls for one socket.
HandshakeResult AdvanceHandshake(int socket, Handshake& handshake, std::string& received);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_HANDSHAKE_H_
