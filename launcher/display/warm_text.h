// How the workers of a Python program were started, in words: forked from a process that had
// imported its packages, or plainly. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_WARM_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_WARM_TEXT_H_

#include <string>

#include "proto/job.pb.h"

namespace cadre::launcher {

// A table of the job's nodes; empty where no program could be warm.
std::string WarmStartsTable(const v1::JobStatus& job);

// A line for each generation that started workers plainly; empty where none did.
std::string PlainStartsText(const v1::Timeline& timeline);

// From the start of a worker until it had imported what it needs; "-": not known.
std::string ImportsText(int64_t imports_us);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_WARM_TEXT_H_
