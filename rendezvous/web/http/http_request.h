// The head of an HTTP/1.1 request, as far as a server that is only read from needs it (RFC 9112).
// Pure.
#ifndef CADRE_RENDEZVOUS_WEB_HTTP_HTTP_REQUEST_H_
#define CADRE_RENDEZVOUS_WEB_HTTP_HTTP_REQUEST_H_

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::web {

struct HttpRequest {
  // GET or HEAD.
  std::string method;
  // Decoded, beginning with '/'.
  std::string path;
  // Decoded; of a name that comes twice the last.
  std::map<std::string, std::string> query;
  // As sent, without surrounding blanks; empty where there is none.
  std::string host;
  std::string authorization;
  // What a browser says of the page that asks: "same-origin", "cross-site". Empty: no browser.
  std::string fetch_site;
};

// `head`: everything up to and without the empty line.
//   INVALID_ARGUMENT  no HTTP/1.x request, or one that is malformed
//   UNIMPLEMENTED     a method other than GET and HEAD, or a body
absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view head);

// The token of "Authorization: Bearer TOKEN"; nullopt: there is none.
std::optional<absl::string_view> TokenOf(const HttpRequest& request);

// Whether the Host header is a name of this machine's loopback, or `name`. A page of another site
// whose name was made to resolve to loopback sends that site's.
bool HostIsLoopback(const HttpRequest& request, absl::string_view name);

// Whether a page of another site asks, in a browser that says so.
bool IsFromAnotherSite(const HttpRequest& request);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_HTTP_REQUEST_H_
