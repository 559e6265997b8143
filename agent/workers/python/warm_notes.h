// What people are told of warm starts, once. Pure; one thread.
#ifndef CADRE_AGENT_WORKERS_PYTHON_WARM_NOTES_H_
#define CADRE_AGENT_WORKERS_PYTHON_WARM_NOTES_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/frames.h"

namespace cadre::agent {

class WarmNotes {
 public:
  // Why a worker was started plainly: once a generation, and not of a job's first one, in which
  // nothing else was to be expected. Empty: there is nothing to say.
  std::string OnStarted(const supervisor::StartedFrame& started, uint64_t generation,
                        bool restarted) {
    if (started.why_cold.empty() || !restarted) return "";
    if (std::exchange(said_in_, generation) == generation) return "";
    return absl::StrCat("started plainly, not warm: ", started.why_cold);
  }

 private:
  uint64_t said_in_ = 0;  // generation
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_WARM_NOTES_H_
