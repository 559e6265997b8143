// Fuzzes a worker's answer to a request for its flight record.
#include "agent/evidence/torch/flight_recorder.h"
#include "base/check.h"
#include "rpc/message_limits.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto groups = cadre::agent::ParseFlightRecord(cadre::fuzz::Text(data, size));
  CADRE_CHECK(groups.size() <= cadre::rpc::kProcessGroupsMax);
  for (const auto& group : groups) {
    CADRE_CHECK(group.calls_size() <= cadre::rpc::kGroupCallsMax);
    // Protobuf strings must be UTF-8, or the message cannot be sent.
    CADRE_CHECK(!group.SerializeAsString().empty() || group.ByteSizeLong() == 0);
  }
  return 0;
}
