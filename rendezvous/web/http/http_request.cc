#include "rendezvous/web/http/http_request.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace cadre::web {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = absl::ascii_tolower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

absl::StatusOr<std::string> Decode(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low < 0) return absl::InvalidArgumentError("a % in the path without two digits");
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

absl::Status TakeTarget(absl::string_view target, HttpRequest* request) {
  if (!absl::StartsWith(target, "/")) {
    return absl::InvalidArgumentError("the path must begin with /");
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  ASSIGN_OR_RETURN(request->path, Decode(parts.first));
  for (const absl::string_view pair : absl::StrSplit(parts.second, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    ASSIGN_OR_RETURN(const std::string name, Decode(field.first));
    ASSIGN_OR_RETURN(request->query[name], Decode(field.second));
  }
  return absl::OkStatus();
}

absl::Status TakeField(absl::string_view line, HttpRequest* request) {
  const std::pair<absl::string_view, absl::string_view> field =
      absl::StrSplit(line, absl::MaxSplits(':', 1));
  if (field.first.size() == line.size() || field.first.empty() ||
      field.first.find_first_of(" \t") != field.first.npos) {
    return absl::InvalidArgumentError("a header without a name and a colon");
  }
  const std::string name = absl::AsciiStrToLower(field.first);
  const std::string value(absl::StripAsciiWhitespace(field.second));
  if (name == "transfer-encoding" || (name == "content-length" && value != "0")) {
    return absl::UnimplementedError("a request with a body is not answered here");
  }
  if (name == "host") {
    // With two of them, a proxy may have checked the other one.
    if (!request->host.empty()) return absl::InvalidArgumentError("two Host headers");
    request->host = value;
  }
  if (name == "authorization") request->authorization = value;
  if (name == "sec-fetch-site") request->fetch_site = value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view head) {
  HttpRequest request;
  const std::vector<absl::string_view> lines = absl::StrSplit(head, absl::ByString("\r\n"));
  const std::vector<absl::string_view> first = absl::StrSplit(lines[0], ' ');
  if (first.size() != 3 || (first[2] != "HTTP/1.1" && first[2] != "HTTP/1.0")) {
    return absl::InvalidArgumentError("not an HTTP/1.1 request");
  }
  request.method = std::string(first[0]);
  if (request.method != "GET" && request.method != "HEAD") {
    return absl::UnimplementedError("only GET and HEAD are answered here");
  }
  RETURN_IF_ERROR(TakeTarget(first[1], &request));
  for (size_t i = 1; i < lines.size(); ++i) RETURN_IF_ERROR(TakeField(lines[i], &request));
  return request;
}

std::optional<absl::string_view> TokenOf(const HttpRequest& request) {
  absl::string_view given = request.authorization;
  constexpr size_t kScheme = sizeof("Bearer ") - 1;
  if (!absl::StartsWithIgnoreCase(given, "Bearer ")) return std::nullopt;
  given.remove_prefix(kScheme);
  return absl::StripAsciiWhitespace(given);
}

bool HostIsLoopback(const HttpRequest& request, absl::string_view name) {
  absl::string_view host = request.host;
  const size_t colon = host.rfind(':');
  // A colon inside brackets belongs to the address.
  if (colon != host.npos && host.find(']', colon) == host.npos) host = host.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return absl::EqualsIgnoreCase(host, "localhost") || host == "127.0.0.1" || host == "::1" ||
         absl::EqualsIgnoreCase(host, name);
}

bool IsFromAnotherSite(const HttpRequest& request) {
  return request.fetch_site == "cross-site" || request.fetch_site == "same-site";
}

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

// The page may use only what this server serves, and no other page may frame it.
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
