// How large messages between processes of Cadre may be, and what is in them.
#ifndef CADRE_RPC_LIMITS_H_
#define CADRE_RPC_LIMITS_H_

#include <cstddef>

namespace cadre::rpc {

// One message, in either direction.
inline constexpr int kMessageBytesMax = 1 << 20;
// But an answer to who asks for all jobs or all nodes. A list has some 4 KiB of a job at most, of
// which a server has 11,000 (10,000 live, 1,000 ended), and some 500 bytes of a node with 8 parts,
// of which a job has 100,000.
inline constexpr int kListBytesMax = 64 << 20;
// Messages of a node's stream that go out as one (NodeMessage.more), beyond the first.
inline constexpr size_t kBundleBytesMax = 64 << 10;
// Of what PyTorch's flight recorder tells of a rank (RankEvidence.calls): groups, calls and messages
// of each, and of how many ranks a group may be that all of them are named.
inline constexpr int kProcessGroupsMax = 64;
inline constexpr int kGroupCallsMax = 8;
inline constexpr int kGroupRanksMax = 64;

}  // namespace cadre::rpc

#endif  // CADRE_RPC_LIMITS_H_
