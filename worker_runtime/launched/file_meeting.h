// mpirun's ranks meet through a file that only this user can read: of the home directory that the
// nodes share, or, on one node, of the machine's. It has the store's endpoint and key.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_FILE_MEETING_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_FILE_MEETING_H_

#include <memory>

#include "cadre/result.h"
#include "worker_runtime/environment/launch.h"
#include "worker_runtime/launched/meeting_place.h"

namespace cadre::launched {

// FAILED_PRECONDITION: the directory cannot be had; says what to do.
Result<std::unique_ptr<MeetingPlace>> MeetThroughFile(const environment::ThroughFile& file,
                                                      bool one_node);

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_FILE_MEETING_H_
