// Replies that say what went wrong. For the HTTP server's thread.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_REPLY_ERROR_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_REPLY_ERROR_H_

#include "absl/status/status.h"
#include "rendezvous/web/http/http_server.h"

namespace cadre::web {

inline constexpr char kTextType[] = "text/plain; charset=utf-8";

// The HTTP status that fits, and the message as a line of text.
void ReplyError(HttpExchange& exchange, const absl::Status& status);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_REPLY_ERROR_H_
