// Which collective each rank of a communicator is in, as the ranks tell each other, and what
// follows from it: who called something else, who left, who is missing. Pure.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_CALL_LEDGER_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_CALL_LEDGER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cadre/status.h"

namespace cadre::sockets {

// Bytes of a call's description; what is longer ends with a hash of the rest.
inline constexpr size_t kMaxCallText = 200;
// A rank remembers so many of its own calls.
inline constexpr size_t kRememberedCalls = 64;

struct CallStatement {
  uint64_t call = 0;      // the last one begun, counted from 1
  uint64_t finished = 0;  // the last one finished
  std::string text;       // of `call`
};

class CallLedger {
 public:
  CallLedger(int rank, int size) : rank_(rank), peers_(size) {}

  // This rank begins its next call, such as "all-reduce (sum) of 4 float32".
  //   INVALID_ARGUMENT  another rank has told that this call of its own is another one
  //   ABORTED           a rank left before this call
  Status Begin(absl::string_view text);
  void End() { own_.finished = own_.call; }
  const CallStatement& own() const { return own_; }
  bool is_running() const { return own_.finished < own_.call; }

  // What a peer tells; INVALID_ARGUMENT as above, which is a failure() from then on.
  Status Hear(int peer, CallStatement statement);
  // It aborted its part, after that many calls. ABORTED: this rank's call under way needs it.
  Status HearLeave(int peer, uint64_t finished);
  // It gave up for a reason, which is everybody's from now on unless there is one already.
  Status HearFailure(int peer, Status reason);
  // What all operations fail with from now on; OK: nothing.
  const Status& failure() const { return failure_; }
  // Its connection ended: it will answer nothing more. `altered`: this rank ended it, since what
  // came was not what the peer had sent.
  void HearEnd(int peer, bool altered = false);
  // Whether the connection to some rank ended that had not left.
  bool has_any_died() const { return has_any_died_; }
  // Nobody has left, died or failed, so that the next call may begin.
  bool is_undisturbed() const { return failure_.ok() && !has_any_died_ && !has_any_left_; }

  // Why an exchange with `ranks` came to an end: the failure somebody told, or who of them, or
  // else of all, left or is gone. OK: nobody yet.
  Status WhyLost(const std::set<int>& ranks) const;

  // Why a message from or to `peer` came to nothing: the failure somebody told, or that the peer
  // left or is gone, whatever has become of others. OK: neither is known yet.
  Status WhyMessageLost(int peer) const;

  // Before the peers are asked where they are.
  void ForgetAnswers();
  bool HaveAllAnswered() const;
  // Who has not come to the call under way, as far as their answers tell; empty: nobody is known.
  std::string Missing() const;

 private:
  struct Peer {
    CallStatement told;
    bool has_told = false;
    bool has_answered = false;
    bool has_left = false;  // after told.finished
    bool is_gone = false;
    bool is_altered = false;
  };

  Status Left(int peer) const;
  // OK: it is there, or has left before.
  Status Gone(int peer) const;
  Status Different(uint64_t call) const;
  // Of this rank's call; empty: forgotten, or not begun.
  const std::string& TextOf(uint64_t call) const;

  const int rank_;
  std::vector<Peer> peers_;
  CallStatement own_;
  std::array<std::string, kRememberedCalls> texts_;
  Status failure_;
  bool has_any_died_ = false;
  bool has_any_left_ = false;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_CALL_LEDGER_H_
