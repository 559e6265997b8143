// A job's state in a few lines, for the bottom of a terminal or as a line in a pipe. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_STATUS_BLOCK_H_
#define CADRE_LAUNCHER_DISPLAY_STATUS_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// How far the job is: "step 418 (rank 3; others up to 420) | 1234 samples/s | loss 0.2500", and
// "step 418 | no step for 25s" where the last one is long ago.
std::string ProgressText(const v1::JobProgress& progress);

// At most four lines without '\n', none wider than `width`; `nodes` is what the job asked for,
// `here` what the workers of this node report, which comes before the server has it.
std::vector<std::string> StatusBlock(const v1::JobStatus& status,
                                     const std::vector<v1::Progress>& here,
                                     const v1::NodeRange& nodes, size_t width, bool color);

// The time that a job takes, told by what it has done since this process saw its first step. One
// thread.
class Pace {
 public:
  // "420 of 1000 steps | 12:31 gone, 17:13 left | lr 0.001"; what is not known is left out, and it
  // may be empty.
  std::string Text(const v1::JobStatus& status, const std::vector<v1::Progress>& here,
                   MonoTime now);

 private:
  uint64_t generation_ = 0;
  uint64_t first_step_ = 0;
  MonoTime first_at_;
  MonoTime began_;
  bool has_begun_ = false;
};

// How many nodes are in, also where the status does not name them.
uint32_t NodesIn(const v1::JobStatus& status);

// A table of the job's nodes and their ranks.
std::string NodesTable(const v1::JobStatus& job);

// Lines for a pipe: none unless something a person would want to know has changed.
class StatusLines {
 public:
  // Lines without '\n'.
  std::vector<std::string> Update(const v1::JobStatus& status);

 private:
  uint64_t formed_ = 0;
  uint64_t running_ = 0;
  uint64_t stopping_ = 0;
  uint64_t ended_ = 0;
  uint32_t restarts_ = 0;
  bool said_waiting_ = false;
  bool said_queued_ = false;
  bool said_stall_ = false;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_STATUS_BLOCK_H_
