// A gate on this machine that admits processes that hold the id. NCCL checks its ranks in the same
// way, but only where there is a GPU; this gate shows it anywhere. One thread.
#ifndef CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GATE_H_
#define CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GATE_H_

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre {

class Gate {
 public:
  // Opens a unix socket in a new directory that only this user may enter, for ranks 0 to `ranks` -
  // 1.
  static Result<Gate> Open(std::string id, int ranks);
  ~Gate();
  Gate(Gate&& other) noexcept;
  Gate& operator=(Gate&&) = delete;

  const std::string& path() const { return path_; }

  // Answers the next process. OK: it waits inside. PERMISSION_DENIED: it does not hold the id, or
  // it claims a rank that is not free, and was refused with this message. DEADLINE_EXCEEDED names
  // the ranks that have not come.
  Status AnswerOne(std::chrono::steady_clock::time_point deadline);
  bool AllAreIn() const;
  // Tells the processes inside that all ranks have come.
  Status Welcome();

 private:
  Gate(std::string id, int ranks);
  Result<int> AskRank(int connection, std::chrono::steady_clock::time_point deadline) const;

  const std::string id_;
  std::string path_;
  int fd_ = -1;
  // The connection of each rank; -1 before it has come.
  std::vector<int> connections_;
};

// Returns when all ranks are in. Fails with PERMISSION_DENIED and the gate's message if refused.
Status EnterGate(const std::string& path, std::string_view id, int rank,
                 std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GATE_H_
