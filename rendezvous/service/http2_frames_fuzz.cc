// Bytes of an unauthenticated client: the counts must not depend on how the bytes are split.
#include "base/check.h"
#include "rendezvous/service/connection_watch.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view all = cadre::fuzz::Text(data, size);
  cadre::service::Http2Frames at_once, in_pieces;
  const auto counts = at_once.Read(all);
  uint64_t calls = 0, control = 0, small = 0, data_bytes = 0, ended = 0;
  for (size_t at = 0; at < all.size();) {
    const size_t piece = 1 + static_cast<uint8_t>(all[at]) % 31;
    const auto some = in_pieces.Read(all.substr(at, piece));
    calls += some.calls;
    control += some.control;
    small += some.small;
    data_bytes += some.data_bytes;
    ended += some.ended_call_bytes;
    at += piece;
  }
  CADRE_CHECK(calls == counts.calls && control == counts.control && small == counts.small);
  CADRE_CHECK(data_bytes == counts.data_bytes && ended == counts.ended_call_bytes);
  CADRE_CHECK(in_pieces.open_calls() == at_once.open_calls());
  CADRE_CHECK(in_pieces.partial_bytes() == at_once.partial_bytes());
  return 0;
}
