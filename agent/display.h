// Where lines for people go: the live status block or plain lines. Called on the loop thread.
#ifndef CADRE_AGENT_DISPLAY_H_
#define CADRE_AGENT_DISPLAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/core/command.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

class Display {
 public:
  virtual ~Display() = default;
  // Whole lines of a worker, prefixed, each with its '\n'. `to_stderr`: which stream they came
  // from.
  virtual void WorkerLines(const std::string& lines, bool to_stderr) = 0;
  // Whether this stream's lines that are being overwritten, as progress bars, are told by
  // CurrentLine(): drawn they are with the next Status(). Else they come as the worker writes them.
  virtual bool DrawsCurrentLines(bool /*to_stderr*/) const { return false; }
  // What such a line of the worker shows now; empty: it has none any more.
  virtual void CurrentLine(uint32_t /*local_rank*/, const std::string& /*line*/) {}
  // Whether more of the workers' lines may come: who reads them keeps up, or has stood still for so
  // long that some are left out.
  virtual bool TakesLines() { return true; }
  virtual void Line(const std::string& line) = 0;  // a line of the launcher's own
  virtual void Status(const v1::JobStatus& status, const std::vector<v1::Progress>& progress) = 0;
  virtual void Finish(const Exit& exit) = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_DISPLAY_H_
