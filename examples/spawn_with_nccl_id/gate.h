// A door on this machine that opens for those who hold the id. NCCL asks the same of its ranks, but
// only where there is a GPU; here it is seen anywhere. One thread.
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
  // A unix socket in a new directory that only this user may enter, for the ranks 0 to `ranks` - 1.
  static Result<Gate> Open(std::string id, int ranks);
  ~Gate();
  Gate(Gate&& other) noexcept;
  Gate& operator=(Gate&&) = delete;

  const std::string& path() const { return path_; }

  // Answers whoever comes next: OK, it waits inside. PERMISSION_DENIED: it does not hold the id, or
  // takes a rank that is not free, and was sent away with these words. DEADLINE_EXCEEDED names the
  // ranks that have not come.
  Status AnswerOne(std::chrono::steady_clock::time_point deadline);
  bool AllAreIn() const;
  // Tells those who wait inside that all are here.
  Status Welcome();

 private:
  Gate(std::string id, int ranks);
  Result<int> AskRank(int connection, std::chrono::steady_clock::time_point deadline) const;

  const std::string id_;
  std::string path_;
  int fd_ = -1;
  // Of each rank; -1 before it came.
  std::vector<int> connections_;
};

// Returns when all ranks are in. PERMISSION_DENIED with the gate's words: sent away.
Status EnterGate(const std::string& path, std::string_view id, int rank,
                 std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_GATE_H_
