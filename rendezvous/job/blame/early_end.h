// A rank that ended with exit code 0 while others still worked with it, which lost it. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_BLAME_EARLY_END_H_
#define CADRE_RENDEZVOUS_JOB_BLAME_EARLY_END_H_

#include <optional>
#include <vector>

#include "proto/failure.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// The failure of the first rank that has succeeded, where any has: it is why the `victims`, ranks
// that lost another one, failed. Its message names all that have, and the victims.
std::optional<v1::Failure> EarlyEnd(const state::Generation& generation,
                                    const std::vector<v1::Failure>& victims);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_BLAME_EARLY_END_H_
