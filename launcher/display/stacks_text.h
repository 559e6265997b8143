// Where a job's ranks are, for a terminal. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_STACKS_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_STACKS_TEXT_H_

#include <string>

#include "proto/control.pb.h"

namespace cadre::launcher {

// "0-2,5".
std::string RanksText(const v1::StackGroup& group);

// Groups of ranks, the largest first, each with its calls, the most recent one first as
// faulthandler and py-spy print them; lines of the user's own program are marked with '>' and have
// their text. Then the nodes that did not answer. Of one rank its whole text follows.
std::string StacksText(const v1::GetStacksReply& reply);

// The same in a line for each group.
std::string PlacesText(const v1::GetStacksReply& reply);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_STACKS_TEXT_H_
