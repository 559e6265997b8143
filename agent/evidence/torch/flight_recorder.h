// The collective calls that PyTorch processes have made in their process groups. PyTorch 2.15 keeps
// a flight recorder for NCCL and for Gloo; Cadre's start hook
// (agent/supervisor/warm/flight_recorder.py) has a thread that answers with the part of it that is
// relevant to a hang. It needs the GIL: a process that holds it in C code does not answer, which
// its stack shows (python_stack.h). Stateless; any thread.
#ifndef CADRE_AGENT_EVIDENCE_TORCH_FLIGHT_RECORDER_H_
#define CADRE_AGENT_EVIDENCE_TORCH_FLIGHT_RECORDER_H_

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/failure.pb.h"

namespace cadre::agent {

// The limit of an answer; a longer one is discarded.
inline constexpr size_t kMaxFlightRecordBytes = 256 << 10;

// The socket of the process, derived from its worker's CADRE_STACK_FILE.
std::string FlightRecorderSocket(const std::string& stack_file, pid_t process);

// Asks all of these sockets at once. An answer is empty if there is no such socket, or no complete
// answer before `deadline`.
std::vector<std::string> FlightRecordsOf(const std::vector<std::string>& sockets,
                                         MonoTime deadline);

// The groups in an answer, up to the limits in rpc/message_limits.h. An invalid answer has none.
std::vector<v1::ProcessGroupCalls> ParseFlightRecord(absl::string_view answer);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_TORCH_FLIGHT_RECORDER_H_
