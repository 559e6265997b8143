// Whether threads can be started. Where a user's or a container's limit of processes is reached,
// std::thread throws, and gRPC, which does without those that it does not get, waits for ever.
#ifndef CADRE_LAUNCHER_THREAD_ROOM_H_
#define CADRE_LAUNCHER_THREAD_ROOM_H_

#include <string>

#include "absl/status/status.h"

namespace cadre::launcher {

// The threads that gRPC begins with: its timers, its executors and a first poller.
inline constexpr int kGrpcThreads = 8;

// Starts so many threads at once and ends them. RESOURCE_EXHAUSTED: some are refused; says why and
// what to do. Any thread.
absl::Status CheckThreadRoom(int threads);

// The error to report when a thread was refused.
std::string NoThreadRoom(int error);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_THREAD_ROOM_H_
