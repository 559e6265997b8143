// The head of a reply, but for the length of what follows.
#ifndef CADRE_RENDEZVOUS_WEB_HTTP_REPLY_HEAD_H_
#define CADRE_RENDEZVOUS_WEB_HTTP_REPLY_HEAD_H_

#include <string>

#include "absl/strings/string_view.h"

namespace cadre::web {

std::string ReplyHead(int status, absl::string_view type);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_REPLY_HEAD_H_
