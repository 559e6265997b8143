// A client of the agents' store: however its bytes come in pieces, the requests are the same.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/torch_store/torch_request_reader.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

// The requests of `bytes`, which come `piece` at a time, and "refused" in the end where one is.
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
