// Fuzzes the bytes of a client of the agents' store: however they are split, the requests must be
// the same.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/torch_store/torch_request.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

// Parses `bytes` in pieces of `piece` bytes; the result ends with "refused" if a request is
// invalid.
std::vector<std::string> Requests(absl::string_view bytes, size_t piece) {
  cadre::agent::TorchRequestReader reader;
  std::vector<std::string> requests;
  while (!bytes.empty()) {
    absl::string_view come = bytes.substr(0, piece);
    bytes.remove_prefix(come.size());
    while (!come.empty()) {
      cadre::agent::TorchRequest request;
      const absl::StatusOr<bool> read = reader.Read(&come, &request);
      if (!read.ok()) {
        requests.emplace_back("refused");
        return requests;
      }
      if (!*read) continue;
      requests.push_back(absl::StrCat(static_cast<int>(request.op), " ", request.number, " ",
                                      absl::StrJoin(request.keys, ","), " ",
                                      absl::StrJoin(request.values, ",")));
    }
  }
  return requests;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes = cadre::fuzz::Text(data + 1, size - 1);
  CADRE_CHECK(Requests(bytes, bytes.size()) == Requests(bytes, 1 + data[0] % 16));
  return 0;
}
