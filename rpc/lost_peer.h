// Whether a program failed because it lost another rank: by its exit, and by a line that it wrote.
// Pure.
#ifndef CADRE_RPC_LOST_PEER_H_
#define CADRE_RPC_LOST_PEER_H_

#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"

namespace cadre::rpc {

// Whether the program's error (program_error.h) is of kind kLostPeer, and whether a timeout ended
// the wait.
bool LostPeer(const v1::WorkerExit& exit);
bool PeerWaitTimedOut(const v1::WorkerExit& exit);

// Whether a program failed because another rank was gone: its collectives or PyTorch's store
// report that a connection ended or that a peer did not come. Then the rank is a victim, not the
// cause.
//
// `line` is an exception's, with its type ("torch.distributed.DistBackendError: NCCL error in:
// ..."), or one that a library wrote before it aborted. Errors of a program's own connections, as
// to a data set on the network, do not count.
bool ReportsLostPeer(absl::string_view line);

// Of such a line: a timeout ended the wait for a peer.
bool ReportsPeerTimeout(absl::string_view line);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_LOST_PEER_H_
