// Effects of the core as lines for people, for golden stories. Pure; for tests.
#ifndef CADRE_RENDEZVOUS_TESTING_SCRIPT_TEXT_H_
#define CADRE_RENDEZVOUS_TESTING_SCRIPT_TEXT_H_

#include <functional>
#include <string>
#include <vector>

#include "rendezvous/step/effect.h"

namespace cadre {

// One line for each effect; a message that goes to several nodes in a row is one line with all
// names.
std::vector<std::string> LinesOf(const Effects& effects,
                                 const std::function<std::string(StreamId)>& node_of);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_SCRIPT_TEXT_H_
