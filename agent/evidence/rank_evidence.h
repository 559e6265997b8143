// What an agent says of one worker that hangs or has died. Pure; any thread.
#ifndef CADRE_AGENT_EVIDENCE_RANK_EVIDENCE_H_
#define CADRE_AGENT_EVIDENCE_RANK_EVIDENCE_H_

#include <string>

#include "agent/evidence/process_look.h"
#include "agent/evidence/python_stack.h"
#include "base/progress_snapshot.h"
#include "base/time.h"
#include "proto/failure.pb.h"

namespace cadre::agent {

void AddProcesses(const ProcessLook& look, v1::RankEvidence* evidence);
void AddPython(const PythonPlace& place, v1::RankEvidence* evidence);
void AddPage(const ProgressSnapshot& page, MonoTime now, v1::RankEvidence* evidence);

// What was added, in words: "pid 17: stopped (state T), 0.0 cores; step 5, waits for bucket 2 since
// 2.1 s".
std::string EvidenceSummary(const v1::RankEvidence& evidence);

// The page's last collectives, a line each.
std::string PageText(const ProgressSnapshot& page, MonoTime now);

// The calls that the rank made in PyTorch's process groups, a line each. Empty: none are known.
std::string CallsText(const v1::RankEvidence& evidence);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_RANK_EVIDENCE_H_
