// Opens files in a directory whose content others may choose.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_OPEN_BELOW_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_OPEN_BELOW_H_

#include <string>

#include "absl/strings/string_view.h"

namespace cadre::web {

// A descriptor of the regular file root/relative, for reading; -1 with errno where there is none.
// Below `root` no symbolic link is followed, and nothing is waited for: ELOOP or ENOTDIR for a
// link, EINVAL for what is no regular file or for a name with "..".
int OpenBelow(const std::string& root, absl::string_view relative);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_OPEN_BELOW_H_
