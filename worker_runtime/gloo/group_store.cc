#include "worker_runtime/gloo/group_store.h"

#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "gloo/common/error.h"

namespace cadre::gloo {

GroupStore::GroupStore(Communicator* parent, std::vector<int> members, absl::Duration timeout)
    : parent_(*parent), members_(std::move(members)), timeout_(timeout) {}

absl::Status GroupStore::Exchange(std::string value) {
  ++exchanges_;
  int64_t size = static_cast<int64_t>(value.size());
  std::vector<int64_t> sizes(parent_.size());
  RETURN_IF_ERROR(
      parent_
          .AllGather({&size, 1, DataType::kInt64}, {sizes.data(), sizes.size(), DataType::kInt64})
          ->Wait(timeout_));
  const std::vector<size_t> counts(sizes.begin(), sizes.end());
  size_t total = 0;
  for (const size_t count : counts) total += count;
  std::string all(total, '\0');
  RETURN_IF_ERROR(parent_
                      .AllGatherVarying({value.data(), value.size(), DataType::kUint8},
                                        {all.data(), all.size(), DataType::kUint8}, counts)
                      ->Wait(timeout_));
  values_.clear();
  size_t offset = 0;
  for (const size_t count : counts) {
    values_.push_back(all.substr(offset, count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status GroupStore::Finish() {
  while (exchanges_ < kGlooSets) RETURN_IF_ERROR(Exchange(""));
  return absl::OkStatus();
}

void GroupStore::set(const std::string&, const std::vector<char>& data) {
  Check(Exchange(std::string(data.begin(), data.end())));
}

std::vector<char> GroupStore::get(const std::string& key) {
  // "rank_R" for the host's name, "R" for the addresses.
  int rank = -1;
  if (!absl::SimpleAtoi(absl::StripPrefix(key, "rank_"), &rank) || rank < 0 ||
      rank >= static_cast<int>(members_.size())) {
    Check(absl::InternalError(absl::StrCat("Gloo asks for '", key, "', which is no rank")));
  }
  const std::string& value = values_[members_[rank]];
  if (value.empty()) {
    Check(absl::UnavailableError(
        absl::StrCat("rank ", members_[rank], " could not listen for the group's connections")));
  }
  return std::vector<char>(value.begin(), value.end());
}

void GroupStore::Check(const absl::Status& status) {
  if (status.ok()) return;
  status_ = status;
  throw ::gloo::IoException(status.ToString());
}

}  // namespace cadre::gloo
