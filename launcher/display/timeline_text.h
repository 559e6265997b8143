// Where a job's time went, as tables and as a picture, and how the workers of a Python program were
// started: forked from a process that had imported its packages (warm), or plainly. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_TIMELINE_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_TIMELINE_TEXT_H_

#include <cstdint>
#include <string>

#include "proto/job.pb.h"

namespace cadre::launcher {

// The phases of every generation and every recovery, and the job's progress at a few moments.
std::string TimelineText(const v1::Timeline& timeline);

// A table with the phases of every recovery.
std::string RecoveriesText(const v1::Timeline& timeline);

// The timeline as an SVG document, which needs no style sheet, font or script: a bar for each
// generation, its phases in colours, and below them the speed and the loss.
std::string TimelineSvg(const v1::Timeline& timeline);

// When the generation ended, or was last reported; microseconds as in the timeline.
int64_t EndOf(const v1::Timeline& timeline, const v1::GenerationTimeline& generation);

// "1.25s"; "-" if `to_us` has not occurred.
std::string TookText(int64_t from_us, int64_t to_us);

// A table of the job's nodes with how their workers were started; empty if no worker could be
// started warm.
std::string WarmStartsTable(const v1::JobStatus& job);

// A line for each generation that started workers plainly; empty if none did.
std::string PlainStartsText(const v1::Timeline& timeline);

// The time from the start of a worker until its imports were done; "-" if it is not known.
std::string ImportsText(int64_t imports_us);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_TIMELINE_TEXT_H_
