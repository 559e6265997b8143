#include "worker_runtime/nccl/nccl_offers.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cadre/nccl/unique_id.h"

namespace cadre::nccl {
namespace {

// The id, or nothing, comes first, because it may hold any byte; then "CODE\nGPU\nMESSAGE".
constexpr char kWithId = 'i';
constexpr char kWithoutId = '-';
constexpr size_t kTextBegins = 1 + kNcclUniqueIdBytes;

Result<NcclOffer> ReadNcclOffer(absl::string_view message) {
  NcclOffer offer;
  if (message[0] == kWithId) offer.id = std::string(message.substr(1, kNcclUniqueIdBytes));
  const absl::string_view padded = message.substr(kTextBegins);
  const std::vector<std::string> fields =
      absl::StrSplit(padded.substr(0, padded.find('\0')), absl::MaxSplits('\n', 2));
  int code = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &code)) {
    return InternalError("a rank's offer for NCCL cannot be read");
  }
  offer.status = Status(static_cast<StatusCode>(code), fields[2]);
  offer.gpu = fields[1];
  return offer;
}

}  // namespace

std::string WriteNcclOffer(const NcclOffer& offer) {
  std::string message(1, offer.id.empty() ? kWithoutId : kWithId);
  message += offer.id;
  message.resize(kTextBegins);
  absl::StrAppend(&message, static_cast<int>(offer.status.code()), "\n", offer.gpu, "\n",
                  offer.status.message());
  message.resize(kNcclOfferBytes - 1);
  message.push_back('\0');
  return message;
}

Result<std::vector<std::string>> AgreeOnNcclIds(const std::string& messages) {
  std::vector<std::string> ids;
  std::map<std::string, size_t> ranks;
  Status shared;
  for (size_t rank = 0; rank < messages.size() / kNcclOfferBytes; ++rank) {
    ASSIGN_OR_RETURN(NcclOffer offer, ReadNcclOffer(absl::string_view(messages).substr(
                                          rank * kNcclOfferBytes, kNcclOfferBytes)));
    if (!offer.status.ok()) {
      return Status(offer.status.code(), absl::StrCat("rank ", rank, ": ", offer.status.message()));
    }
    const auto [first, is_new] = ranks.emplace(offer.gpu, rank);
    if (!is_new && !offer.gpu.empty()) {
      shared.Update(FailedPreconditionError(absl::StrCat("ranks ", first->second, " and ", rank,
                                                         " have the same GPU (", offer.gpu,
                                                         "); NCCL needs one for each rank")));
    }
    if (!offer.id.empty()) ids.push_back(std::move(offer.id));
  }
  RETURN_IF_ERROR(shared);
  return ids;
}

}  // namespace cadre::nccl
