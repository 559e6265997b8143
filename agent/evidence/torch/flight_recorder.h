// What PyTorch processes have called in their process groups. PyTorch 2.15 keeps a flight recorder
// for NCCL and for Gloo; Cadre's start hook (agent/supervisor/warm/flight_recorder.py) has a thread
// that answers with the part of it that tells of a hang. It needs the interpreter's lock: a process
// that holds it in C code does not answer, and its stack says so (python_dump.h). Stateless; any
// thread.
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

// Of an answer; more than that is no answer.
inline constexpr size_t kMaxFlightRecordBytes = 256 << 10;

// Where the process listens, by its worker's CADRE_STACK_FILE.
std::string FlightRecorderSocket(const std::string& stack_file, pid_t process);

// The answer of each of these sockets, all of which are asked at once; empty where there is no such
// socket, or no whole answer before `deadline`.
std::vector<std::string> FlightRecordsOf(const std::vector<std::string>& sockets,
                                         MonoTime deadline);

// The groups of an answer, as many as rpc/limits.h says. What is no such answer has none.
std::vector<v1::ProcessGroupCalls> ParseFlightRecord(absl::string_view answer);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_TORCH_FLIGHT_RECORDER_H_
