// Where the output of workers goes. Plain values.
#ifndef CADRE_AGENT_WORKERS_OUTPUT_OPTIONS_H_
#define CADRE_AGENT_WORKERS_OUTPUT_OPTIONS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace cadre {

// What the user sees of one worker's stream. torchrun's -r and -t are expressed with these.
struct StreamRouting {
  bool file = true;
  bool terminal = true;
};

struct OutputOptions {
  std::string log_dir;  // of all jobs
  // By local rank; a missing entry is {true, true}.
  std::vector<StreamRouting> standard_output;
  std::vector<StreamRouting> standard_error;
  // Only these local ranks reach the terminal; empty: all.
  std::set<uint32_t> terminal_local_ranks;
  // Only these global ranks reach the terminal; empty: all.
  std::set<uint32_t> terminal_ranks;
  // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE; empty: "[${host}:${rank}] ".
  std::string prefix_template;
};

}  // namespace cadre

#endif  // CADRE_AGENT_WORKERS_OUTPUT_OPTIONS_H_
