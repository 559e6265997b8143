// Which workers may be forked from a process that has imported what they import
// (agent/supervisor/warm/templates.h), and what such a process must not know of them. Pure.
#ifndef CADRE_AGENT_WORKERS_PYTHON_WARM_WORKERS_H_
#define CADRE_AGENT_WORKERS_PYTHON_WARM_WORKERS_H_

#include <string>
#include <vector>

#include "agent/supervisor/frames.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

// Sets `warm` of each frame of a generation: of a program of Python's all, of others, and where the
// job does without warm starts, what interpreters need to have the start hook, by which they answer
// with their stacks and use the agents' store. `directory`: this user's alone.
void AllowWarmStart(const v1::RestartPolicy& restart, const std::string& directory,
                    std::vector<supervisor::StartFrame>& workers);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PYTHON_WARM_WORKERS_H_
