// Fuzzes the messages between a worker and its agent: encoding and decoding must be inverse.
#include <string>

#include "base/check.h"
#include "rpc/frames/codec.h"
#include "rpc/worker_protocol.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

template <typename Message>
void ReadAndWrite(absl::string_view content) {
  const auto message = cadre::frames::ParseMessage<Message>(content);
  if (!message.ok()) return;
  std::string bytes;
  cadre::frames::AppendMessage(*message, &bytes);
  const auto same = cadre::frames::ParseMessage<Message>(bytes.substr(cadre::frames::kLengthBytes));
  CADRE_CHECK(same.ok());
  std::string again;
  cadre::frames::AppendMessage(*same, &again);
  CADRE_CHECK(again == bytes);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ReadAndWrite<cadre::rpc::WorkerCall>(cadre::fuzz::Text(data, size));
  ReadAndWrite<cadre::rpc::WorkerReply>(cadre::fuzz::Text(data, size));
  return 0;
}
