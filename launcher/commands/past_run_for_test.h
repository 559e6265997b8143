// Writes the files that a run leaves in its log directory.
#ifndef CADRE_LAUNCHER_COMMANDS_PAST_RUN_FOR_TEST_H_
#define CADRE_LAUNCHER_COMMANDS_PAST_RUN_FOR_TEST_H_

#include <filesystem>
#include <fstream>
#include <string>

#include "agent/run_files.h"
#include "base/status_matchers.h"
#include "proto/failure.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// Writes a run of one rank that ended with this message; no verdict if the message is empty.
inline void WritePastRun(const std::string& logs, const std::string& job, const std::string& run,
                         const std::string& message) {
  const std::string directory = logs + "/" + job + "/run_" + run;
  const std::string rank = directory + "/generation_1/rank_0";
  std::filesystem::create_directories(rank);
  std::ofstream(rank + "/stdout.log") << "one\ntwo\n";
  if (message.empty()) return;
  v1::Verdict verdict;
  verdict.set_job(job);
  verdict.set_run(run);
  verdict.set_outcome(v1::FAILED);
  verdict.set_message(message);
  verdict.mutable_root_cause()->mutable_exit()->set_last_lines("last words");
  v1::Timeline timeline;
  v1::GenerationTimeline& generation = *timeline.add_generations();
  generation.set_generation(1);
  generation.set_stopped_us(2000000);
  generation.set_world_size(1);
  timeline.add_progress()->set_step(7);
  ASSERT_OK(agent::WriteVerdict(directory, verdict, timeline));
}

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_PAST_RUN_FOR_TEST_H_
