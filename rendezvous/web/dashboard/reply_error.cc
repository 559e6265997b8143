#include "rendezvous/web/dashboard/reply_error.h"

#include "absl/strings/str_cat.h"

namespace cadre::web {
namespace {

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return 404;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    default:
      return 503;
  }
}

}  // namespace

void ReplyError(HttpExchange& exchange, const absl::Status& status) {
  exchange.Reply(HttpStatus(status), kTextType, absl::StrCat(status.message(), "\n"));
}

}  // namespace cadre::web
