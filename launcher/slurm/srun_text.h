// What srun writes about the tasks of a step. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SRUN_TEXT_H_
#define CADRE_LAUNCHER_SLURM_SRUN_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace cadre::launcher {

// "57.2" for a step, "63.0" for a job of its own.
std::string StepIdOf(const v1::JobStatus& job);

// The number of a task in front of its lines, as wide as the largest number: " 3: ".
std::string TaskLabel(uint32_t task, uint32_t tasks);

// "task 3", "tasks 0-2,5". They must ascend.
std::string TasksText(const std::vector<uint32_t>& tasks);

// "StepId=57.2 tasks 0-3: running".
std::string RunningText(const v1::JobStatus& job);

// How the job ended, if it did not succeed: a line for each node and each way in which tasks failed
// there, "n1: tasks 0-1: Exited with exit code 2"; or one line if no task failed by itself.
std::vector<std::string> FailureLines(const v1::JobStatus& job);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SRUN_TEXT_H_
