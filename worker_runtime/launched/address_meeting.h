// Ranks meet at an address that all were told: rank 0 listens there.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_ADDRESS_MEETING_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_ADDRESS_MEETING_H_

#include <memory>
#include <optional>

#include "cadre/result.h"
#include "worker_runtime/environment/launch.h"
#include "worker_runtime/environment/secret.h"
#include "worker_runtime/launched/meeting_place.h"

namespace cadre::launched {

// `one_node`: where it is known. FAILED_PRECONDITION: ranks of several machines, and no secret that
// they could share; says what to do. UNAVAILABLE: the host's name is not known.
Result<std::unique_ptr<MeetingPlace>> MeetAtAddress(const environment::AtAddress& at,
                                                    const environment::Secret& secret,
                                                    std::optional<bool> one_node);

// A socket that listens on this machine, which is `host`, so that the others reach it there: at the
// first of the host's addresses that can be had; at all of the machine's where the name means
// loopback here, or another machine that hands on to this one. UNAVAILABLE: it cannot be; why.
Result<ScopedFd> ListenAsHost(const std::string& host, uint16_t port);

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_ADDRESS_MEETING_H_
