// How two ranks prove to each other, on a connection between them, that they know the same key:
// each answers the other's random bytes with a keyed digest (HMAC-SHA256) of them and of what the
// connection is for. A last byte tells the side that called that it was taken. The key never
// crosses the network, and what was overheard serves no other connection. Each also says, as part
// of what is proved, whether it will encrypt. Pure.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_HANDSHAKE_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/status.h"
#include "worker_runtime/wire/record_cipher.h"

namespace cadre::sockets {

// What a connection carries.
enum class Purpose : uint32_t { kControl = 1, kCollectives = 2, kMessages = 3, kStore = 4 };

// In the place of the called rank: the store of all ranks, which none of them is.
inline constexpr int kStoreRank = -1;

// Random bytes of each side.
inline constexpr size_t kNonceBytes = 16;

// What both sides must have alike.
struct Terms {
  std::string key;
  bool encrypts = false;
};

// One side's part: send what output() holds, give Receive() exactly wanted() bytes, until
// is_done(). One thread.
class Handshake {
 public:
  // The side that connects, which knows whom it calls. `nonce`: kNonceBytes random ones.
  static Handshake Call(Terms terms, int own_rank, int peer, Purpose purpose, std::string nonce);
  // The side that was called: by a rank above its own (kStoreRank is below all) and below `size`.
  static Handshake Answer(Terms terms, int own_rank, int size, std::string nonce);

  // What is to be sent now; whoever sends it takes it away.
  std::string& output() { return output_; }
  // Bytes that Receive() wants next; 0: none any more.
  size_t wanted() const { return wanted_; }
  // PERMISSION_DENIED: the other side does not know the key. INVALID_ARGUMENT: it is none of ours,
  // or looks for another rank.
  Status Receive(absl::string_view bytes);
  // Both sides have proved themselves, once what output() holds is sent.
  bool is_done() const { return wanted_ == 0; }

  // Of whoever called: known once is_done().
  int peer() const { return peer_; }
  Purpose purpose() const { return purpose_; }
  // FAILED_PRECONDITION: one side encrypts and the other does not; names both.
  Status CheckTerms() const;
  // What this connection is encrypted with: its own keys, which the peer has the other way round;
  // nullopt where it goes in clear. Once is_done() and CheckTerms() is OK.
  std::optional<wire::RecordKeys> MakeRecordKeys() const;

 private:
  Handshake(Terms terms, std::string nonce);

  Status ReceiveHello(absl::string_view bytes);
  Status ReceiveChallenge(absl::string_view bytes);
  Status ReceiveProof(absl::string_view bytes);
  Status ReceiveWelcome(absl::string_view bytes);
  std::string ProofOf(absl::string_view side) const;

  enum class Step { kHello, kChallenge, kProof, kWelcome };

  const Terms terms_;
  std::string own_nonce_;
  Step step_ = Step::kHello;
  bool calls_ = false;
  int own_rank_ = -1;
  int size_ = 0;
  int peer_ = -1;
  Purpose purpose_ = Purpose::kControl;
  bool peer_encrypts_ = false;
  std::string hello_;      // as it was sent
  std::string challenge_;  // the called side's nonce, and whether it encrypts
  std::string output_;
  size_t wanted_ = 0;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_HANDSHAKE_H_
