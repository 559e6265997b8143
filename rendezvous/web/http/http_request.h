// Parses the head of an HTTP/1.1 request (RFC 9112), as far as a read-only server needs it, and
// writes the head of the reply. Pure.
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
  // Decoded; begins with '/'.
  std::string path;
  // Decoded; the last value of a repeated name.
  std::map<std::string, std::string> query;
  // As sent, without surrounding blanks; empty if it is missing.
  std::string host;
  std::string authorization;
  // How a browser relates the requesting page to this site: "same-origin", "cross-site". Empty: the
  // client is no browser.
  std::string fetch_site;
};

// `head`: everything before the empty line.
//   INVALID_ARGUMENT  no HTTP/1.x request, or one that is malformed
//   UNIMPLEMENTED     a method other than GET and HEAD, or a body
absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view head);

// The token of "Authorization: Bearer TOKEN"; nullopt: there is none.
std::optional<absl::string_view> TokenOf(const HttpRequest& request);

// Whether the Host header names loopback or is `name`. A page of another site whose name was made
// to resolve to loopback sends that site's name.
bool HostIsLoopback(const HttpRequest& request, absl::string_view name);

// Whether a page of another site makes the request, in a browser that reports that.
bool IsFromAnotherSite(const HttpRequest& request);

// The head of a reply without the length of its body.
std::string ReplyHead(int status, absl::string_view type);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_HTTP_REQUEST_H_
