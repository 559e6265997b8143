// Whether a program failed because another rank had gone: its collectives or PyTorch's store say
// that a connection ended or that nobody came. Then it is a victim, and not the cause. Pure.
#ifndef CADRE_RPC_LOST_PEER_H_
#define CADRE_RPC_LOST_PEER_H_

#include "absl/strings/string_view.h"

namespace cadre::rpc {

// `line`: an exception's, with its type ("torch.distributed.DistBackendError: NCCL error in: ..."),
// or one that a library wrote before it aborted. A program's own connections, as to a data set on
// the network, are none of these.
bool SaysPeerIsLost(absl::string_view line);

// Of such a line: what ended is the wait for somebody who did not come, by a timeout.
bool SaysWaitTimedOut(absl::string_view line);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_LOST_PEER_H_
