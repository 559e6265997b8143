// A display for tests that records its input.
#ifndef CADRE_AGENT_RECORDING_DISPLAY_H_
#define CADRE_AGENT_RECORDING_DISPLAY_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/display.h"

namespace cadre::agent {

class RecordingDisplay : public Display {
 public:
  void WorkerLines(const std::string& lines, bool to_stderr) override {
    (to_stderr ? standard_error : standard_output) += lines;
  }
  bool DrawsCurrentRows(bool to_stderr) const override { return draws && to_stderr; }
  void CurrentRows(uint32_t local_rank, std::vector<std::string> rows) override {
    current[local_rank] = std::move(rows);
  }
  void Line(const std::string& line) override { own += line + "\n"; }
  void Status(const v1::JobStatus& shown, const std::vector<v1::Progress>& newest) override {
    status = shown;
    progress = newest;
    ++drawn;
  }
  void Finish(const Exit&) override { ++finished; }

  std::string standard_output;
  std::string standard_error;
  std::string own;
  bool draws = false;
  std::map<uint32_t, std::vector<std::string>> current;
  v1::JobStatus status;
  std::vector<v1::Progress> progress;
  int drawn = 0;
  int finished = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_RECORDING_DISPLAY_H_
