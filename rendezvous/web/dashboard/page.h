// The dashboard's page: a few static files, compiled into the program. They contain no data of the
// server.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_PAGE_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_PAGE_H_

#include "absl/strings/string_view.h"

namespace cadre::web {

struct PageFile {
  absl::string_view path;
  absl::string_view type;
  absl::string_view text;
};

// Returns null if no file has this path.
const PageFile* FindPageFile(absl::string_view path);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_PAGE_H_
