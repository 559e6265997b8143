// Limits of the size and content of messages between processes of Cadre.
#ifndef CADRE_RPC_MESSAGE_LIMITS_H_
#define CADRE_RPC_MESSAGE_LIMITS_H_

#include <cstddef>

namespace cadre::rpc {

// The limit of one message, in either direction.
inline constexpr int kMessageBytesMax = 1 << 20;
// The limit of an answer that lists all jobs or all nodes. A list has up to 4 KiB for each of the
// server's 11,000 jobs (10,000 live, 1,000 ended), or some 500 bytes for each of 100,000 nodes with
// 8 parts.
inline constexpr int kListBytesMax = 64 << 20;
// The messages of a node's stream that are sent together with a first one (NodeMessage.more).
inline constexpr size_t kBundleBytesMax = 64 << 10;
// Limits of a rank's PyTorch flight recorder data (RankEvidence.calls): process groups, and calls
// and messages per group; a group's ranks are listed only if there are this many at most.
inline constexpr int kProcessGroupsMax = 64;
inline constexpr int kGroupCallsMax = 8;
inline constexpr int kGroupRanksMax = 64;

}  // namespace cadre::rpc

#endif  // CADRE_RPC_MESSAGE_LIMITS_H_
