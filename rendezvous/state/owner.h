// The owner of a job: the user who submitted it, or whose token started it with `cadre run`; else
// the administrators. Pure.
#ifndef CADRE_RENDEZVOUS_STATE_OWNER_H_
#define CADRE_RENDEZVOUS_STATE_OWNER_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre::state {

// Returns the owner; empty means the administrators.
inline const std::string& OwnerFrom(const std::string& user, const std::string& started_by) {
  return user.empty() ? started_by : user;
}

// Returns the owner in words that follow "the job is": "ann's", "the administrators'".
inline std::string OwnerText(absl::string_view owner) {
  return owner.empty() ? "the administrators'" : absl::StrCat(owner, "'s");
}

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_OWNER_H_
