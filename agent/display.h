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
  // Lines of a worker, prefixed, each with its end; of a very long one what there is so far, which
  // the next call goes on with. `to_stderr`: which stream they came from.
  virtual void WorkerLines(const std::string& lines, bool to_stderr) = 0;
  // Whether rows of this stream that are being overwritten, as progress bars are, are given to
  // CurrentRows(), and drawn with the next Status(). Else they come as the worker writes them.
  virtual bool DrawsCurrentRows(bool /*to_stderr*/) const { return false; }
  // The rows that the worker overwrites now; none: it does not any more.
  virtual void CurrentRows(uint32_t /*local_rank*/, std::vector<std::string> /*rows*/) {}
  // Whether more of the workers' lines may come: who reads them keeps up, or has stood still for so
  // long that some are left out.
  virtual bool TakesLines() { return true; }
  virtual void Line(const std::string& line) = 0;  // a line of the launcher's own
  virtual void Status(const v1::JobStatus& status, const std::vector<v1::Progress>& progress) = 0;
  virtual void Finish(const Exit& exit) = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_DISPLAY_H_
