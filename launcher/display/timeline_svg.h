// A job's timeline as a picture: a bar for each generation, its phases in colours, and below them
// the speed and the loss. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_TIMELINE_SVG_H_
#define CADRE_LAUNCHER_DISPLAY_TIMELINE_SVG_H_

#include <string>

#include "proto/job.pb.h"

namespace cadre::launcher {

// A whole SVG document, which needs no style sheet, font or script.
std::string TimelineSvg(const v1::Timeline& timeline);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_TIMELINE_SVG_H_
