// Reads a piece of a worker's log file, with the rights of the user whose job it is. Blocks on the
// file system; any thread.
#ifndef CADRE_AGENT_CLUSTER_LOG_FILE_H_
#define CADRE_AGENT_CLUSTER_LOG_FILE_H_

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

// Up to `read.limit` bytes from `read.offset`, or of the last `read.tail`; none at the end of what
// is there now. An agent of root reads as the user, and as root only with `root_too`. NOT_FOUND:
// the file; PERMISSION_DENIED; FAILED_PRECONDITION: it is no regular file, or there is no such
// user. The rest of the chunk is the caller's; `file` tells this machine's files apart.
absl::StatusOr<v1::LogChunk> ReadLogFile(const v1::ReadLog& read, bool root_too);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_LOG_FILE_H_
