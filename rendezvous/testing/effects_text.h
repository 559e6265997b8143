// Formats the core's effects as text, for golden tests. Pure; for tests.
#ifndef CADRE_RENDEZVOUS_TESTING_EFFECTS_TEXT_H_
#define CADRE_RENDEZVOUS_TESTING_EFFECTS_TEXT_H_

#include <functional>
#include <string>
#include <vector>

#include "rendezvous/step/effects.h"

namespace cadre {

// Returns one line per effect; a message that is sent to several nodes in a row is one line with
// all names.
std::vector<std::string> LinesOf(const Effects& effects,
                                 const std::function<std::string(StreamId)>& node_of);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_EFFECTS_TEXT_H_
