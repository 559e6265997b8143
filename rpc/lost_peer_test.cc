#include "rpc/lost_peer.h"

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(LostPeer, WhatGlooSays) {
  for (const char* line :
       {"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error "
        "[127.0.0.1]:52458: Connection reset by peer. This is typically caused by a remote worker "
        "hanging",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection "
        "closed "
        "by peer [127.0.0.1]:14744",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Application timeout "
        "caused pair closure",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] Timed out "
        "waiting 1800000ms for recv operation to complete",
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/"
        "tcp/pair.cc:144] no error"}) {
    EXPECT_TRUE(ReportsLostPeer(line)) << line;
  }
}

TEST(LostPeer, WhatNcclSays) {
  for (const char* line :
       {"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
        "NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL version 2.27.3",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting "
        "prematurely.",
        "[rank0]:[E1125 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600000 milliseconds",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: "
        "wait timeout after 600000ms, keys: /0"}) {
    EXPECT_TRUE(ReportsLostPeer(line)) << line;
  }
}

TEST(LostPeer, WhatPyTorchsStoreSays) {
  for (const char* line :
       {"torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely "
        "closed. Did the remote server shutdown or crash?",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /1",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 "
        "clients joined.",
        "RuntimeError: Connection reset by peer", "RuntimeError: Broken pipe"}) {
    EXPECT_TRUE(ReportsLostPeer(line)) << line;
  }
}

TEST(LostPeer, WhatCadresLibrarySays) {
  for (const char* line :
       {"train: ABORTED: step 3, bucket 0: communicator \"world\": rank 1 has left the "
        "communicator: "
        "its program ended, or it aborted or destroyed it",
        "UNAVAILABLE: communicator \"world\": rank 1 is gone (process 17597)",
        "ABORTED: communicator \"world\": rank 1 aborted the communicator; where the ranks are"}) {
    EXPECT_TRUE(ReportsLostPeer(line)) << line;
  }
  EXPECT_FALSE(ReportsLostPeer("the server is gone"));
}

TEST(LostPeer, NotWhatIsARanksOwn) {
  for (
      const char* line :
      {"ValueError: no sample 17", "RuntimeError: CUDA error: device-side assert triggered",
       "ConnectionResetError: [Errno 104] Connection reset by peer",
       "RuntimeError: data server: Connection reset by peer",
       "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
       "network address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use",
       "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:9, unhandled "
       "system "
       "error, NCCL version 2.27.3",
       "gloo::EnforceNotMet: Received data size doesn't match expected size", "KeyError: 'gloo'"}) {
    EXPECT_FALSE(ReportsLostPeer(line)) << line;
  }
}

TEST(LostPeer, WhetherATimeoutEndedTheWaitForIt) {
  for (const char* line :
       {"RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] Timed out "
        "waiting 1800000ms for recv operation to complete",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Application timeout "
        "caused pair closure",
        "[rank0]:[E1125 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600000 milliseconds",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /1",
        "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 5000 ms",
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while "
        "waiting "
        "for send/recv from rank 0: gloo: timed out in monitoredBarrier after 5000 ms",
        "cadre.DeadlineExceededError: communicator \"world\": rank 1 did not come in time, as "
        "rank 0 noticed",
        "train: DEADLINE_EXCEEDED: step 3, bucket 0: communicator \"world\": rank 1 has not "
        "come"}) {
    EXPECT_TRUE(ReportsLostPeer(line)) << line;
    EXPECT_TRUE(ReportsPeerTimeout(line)) << line;
  }
  for (const char* line :
       {"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error "
        "[127.0.0.1]:52458: Connection reset by peer. This is typically caused by a remote worker",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting",
        "UNAVAILABLE: communicator \"world\": rank 1 is gone (process 17597)",
        "TimeoutError: timed out", "requests.exceptions.ReadTimeout: data server"}) {
    EXPECT_FALSE(ReportsPeerTimeout(line)) << line;
  }
}

}  // namespace
}  // namespace cadre::rpc
