// Where the output of workers goes. Plain values.
#ifndef CADRE_AGENT_WORKERS_OUTPUT_OPTIONS_H_
#define CADRE_AGENT_WORKERS_OUTPUT_OPTIONS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace cadre::agent {

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
  // As LinePrefix() takes it (rank_output.h).
  std::string prefix_template;
  // Lines that are shown and contain one of these go to filtered_stdout.log and filtered_stderr.log
  // of the generation too.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_OUTPUT_OPTIONS_H_
