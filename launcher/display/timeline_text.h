// Where a job's time went, in tables and as a picture. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_TIMELINE_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_TIMELINE_TEXT_H_

#include <cstdint>
#include <string>

#include "proto/job.pb.h"

namespace cadre::launcher {

// A table with the phases of every recovery.
std::string RecoveriesText(const v1::Timeline& timeline);

// The phases of every generation and every recovery, and how far the job was at a few moments.
std::string TimelineText(const v1::Timeline& timeline);

// When the generation ended, or was last heard of; microseconds as in the timeline.
int64_t EndOf(const v1::Timeline& timeline, const v1::GenerationTimeline& generation);

// "1.25s"; "-" where `to_us` has not happened.
std::string TookText(int64_t from_us, int64_t to_us);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_TIMELINE_TEXT_H_
