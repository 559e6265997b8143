// Requests of any client that connects to the dashboard's port.
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rendezvous/web/http/http_request.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto request = cadre::web::ParseHttpRequest(cadre::fuzz::Text(data, size));
  if (!request.ok()) return 0;
  CADRE_CHECK(request->method == "GET" || request->method == "HEAD");
  CADRE_CHECK(!request->path.empty() && request->path[0] == '/');
  cadre::web::TokenOf(*request);
  cadre::web::HostIsLoopback(*request, "node1");
  cadre::web::IsFromAnotherSite(*request);
  return 0;
}
