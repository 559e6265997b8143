#include "rendezvous/service/permission.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "rendezvous/state/owner.h"

namespace cadre::service {
namespace {

constexpr char kAdministrator[] = "; that takes the server's own token";

bool IsAdministrator(const Bearer& bearer) { return bearer.kind == Bearer::Kind::kAdministrator; }

std::string Whose(const Bearer& bearer) {
  switch (bearer.kind) {
    case Bearer::Kind::kAdministrator:
      return "this is the server's own token";
    case Bearer::Kind::kUser:
      return absl::StrCat("this is the token of user ", bearer.user);
    case Bearer::Kind::kPart:
      return absl::StrCat("this is the token of a launcher of job ", bearer.job);
    case Bearer::Kind::kReader:
      break;
  }
  return "this is a read-only token";
}

absl::Status Denied(const Bearer& bearer, absl::string_view what) {
  return absl::PermissionDeniedError(absl::StrCat(Whose(bearer), ", which ", what));
}

}  // namespace

absl::Status MayOpenStream(const Bearer& bearer, const v1::NodeMessage& first) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  if (first.has_agent()) {
    return Denied(bearer, absl::StrCat("adds no node to the cluster", kAdministrator));
  }
  if (bearer.kind == Bearer::Kind::kReader) return Denied(bearer, "starts nothing");
  const uint64_t part = first.join().part();
  if (bearer.kind == Bearer::Kind::kUser) {
    return part == 0 ? absl::OkStatus() : Denied(bearer, "starts no part of a submitted job");
  }
  if (first.job() == bearer.job && part == bearer.part) return absl::OkStatus();
  return Denied(bearer, absl::StrCat("is good for its part ", bearer.part, " alone; this one is ",
                                     first.job() == bearer.job ? absl::StrCat("part ", part)
                                                               : "of another job"));
}

absl::Status MayCallStore(const Bearer& bearer) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  return Denied(bearer, absl::StrCat("opens no job's store", kAdministrator));
}

absl::Status MayLook(const Bearer& bearer) {
  if (bearer.kind != Bearer::Kind::kPart) return absl::OkStatus();
  return Denied(bearer, "is for its node's stream alone; use your own");
}

absl::Status MaySubmit(const Bearer& bearer, const v1::SubmitJobRequest& request) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  const absl::Status looks = MayLook(bearer);
  if (bearer.kind == Bearer::Kind::kReader) {
    return Denied(bearer, "submits no job; that takes a user's");
  }
  if (!looks.ok() || request.user() == bearer.user) return looks;
  return Denied(bearer, "submits jobs of that user alone; you are another one");
}

absl::Status MayUseJob(const Bearer& bearer, absl::string_view owner) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  const absl::Status looks = MayLook(bearer);
  if (bearer.kind == Bearer::Kind::kReader) {
    return Denied(
        bearer, "changes no job and shows no output; that takes its owner's, or the server's own");
  }
  if (!looks.ok() || (!owner.empty() && owner == bearer.user)) return looks;
  return absl::PermissionDeniedError(
      absl::StrCat("the job is ", state::OwnerText(owner), ", and ", Whose(bearer), "; give ",
                   owner.empty() ? "" : "that user's token, or ", "the server's own"));
}

absl::Status MayDrain(const Bearer& bearer) {
  if (IsAdministrator(bearer)) return absl::OkStatus();
  return Denied(bearer, absl::StrCat("drains no node", kAdministrator));
}

const std::string& OwnerOf(const v1::JobStatus& status) {
  return state::OwnerFrom(status.user(), status.started_by());
}

}  // namespace cadre::service
