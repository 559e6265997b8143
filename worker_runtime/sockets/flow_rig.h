// A test fixture that runs the flows of all ranks of a collective in one thread, over local
// sockets.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_FLOW_RIG_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_FLOW_RIG_H_

#include <iterator>
#include <list>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker_runtime/sockets/flow.h"
#include "worker_runtime/wire/connected_pair.h"

namespace cadre::sockets {

class FlowRig {
 public:
  explicit FlowRig(int size, bool is_encrypted = false) : connections_(size) {
    for (auto& own : connections_) own.resize(size);
    for (int rank = 0; rank < size; ++rank) {
      for (int peer = 0; peer < rank; ++peer) {
        std::tie(connections_[rank][peer], connections_[peer][rank]) =
            wire::ConnectedPair(is_encrypted);
      }
    }
  }

  int size() const { return static_cast<int>(connections_.size()); }

  Flow& Begin(int rank, Plan plan, const Opening& opening = {1, 1}) {
    flows_.push_back(std::make_unique<Flow>(rank, connections_[rank], opening, std::move(plan)));
    return *flows_.back();
  }
  void HangUp(int rank) {
    for (wire::Connection& connection : connections_[rank]) connection.Close();
  }

  // Advances the flows in turn until all are done.
  void Finish() {
    bool moves = true;
    while (moves && !flows_.empty()) {
      moves = false;
      for (auto flow = flows_.begin(); flow != flows_.end();) {
        (*flow)->Await(0);
        const Flow::State state = (*flow)->Advance();
        ASSERT_TRUE(state != Flow::State::kLost && state != Flow::State::kDiffers)
            << (*flow)->lost_reason();
        moves = moves || state != Flow::State::kStuck;
        flow = state == Flow::State::kDone ? flows_.erase(flow) : std::next(flow);
      }
    }
    EXPECT_EQ(flows_.size(), 0) << "are stuck";
  }

 private:
  std::vector<std::vector<wire::Connection>> connections_;
  std::list<std::unique_ptr<Flow>> flows_;
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_FLOW_RIG_H_
