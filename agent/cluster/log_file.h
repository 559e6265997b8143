// Reads a piece of a worker's log file, with the rights of the user whose job it is. Blocks on the
// file system; any thread.
#ifndef CADRE_AGENT_CLUSTER_LOG_FILE_H_
#define CADRE_AGENT_CLUSTER_LOG_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"

namespace cadre {

// Up to `read.limit` bytes from `read.offset`; none at the end of what is there now. An agent of
// root reads as the user. NOT_FOUND: user or file; FAILED_PRECONDITION: it is no regular file.
absl::StatusOr<std::string> ReadLogFile(const v1::ReadLog& read);

}  // namespace cadre

#endif  // CADRE_AGENT_CLUSTER_LOG_FILE_H_
