#ifndef CADRE_RENDEZVOUS_HOST_DEAF_SINK_FOR_TEST_H_
#define CADRE_RENDEZVOUS_HOST_DEAF_SINK_FOR_TEST_H_

#include "rendezvous/host/node_sink.h"

namespace cadre::host {

// A node to which all that is said is lost.
class DeafSink final : public NodeSink {
 public:
  void Send(v1::ServerMessage) override {}
  void Close(const absl::Status&) override {}
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_DEAF_SINK_FOR_TEST_H_
