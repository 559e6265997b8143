#include "rendezvous/web/http/reply_head.h"

#include "absl/strings/str_cat.h"

namespace cadre::web {
namespace {

absl::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

// A page may use what comes from here, and nothing else; nobody else may frame it.
constexpr char kSafety[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

}  // namespace

std::string ReplyHead(int status, absl::string_view type) {
  return absl::StrCat("HTTP/1.1 ", status, " ", Reason(status), "\r\nContent-Type: ", type, "\r\n",
                      kSafety, status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                      status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

}  // namespace cadre::web
