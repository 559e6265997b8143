#include "worker_runtime/gloo/store_adaptor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "gloo/common/error.h"

namespace cadre::gloo {

StoreAdaptor::StoreAdaptor(Worker* worker, std::string prefix, MonoTime deadline)
    : worker_(worker), prefix_(std::move(prefix)), deadline_(deadline) {}

void StoreAdaptor::set(const std::string& key, const std::vector<char>& data) {
  const absl::string_view bytes(data.data(), data.size());
  const size_t parts = std::max<size_t>(1, (bytes.size() + kStorePartBytes - 1) / kStorePartBytes);
  // The first part comes last: whoever sees it finds the others.
  for (size_t i = parts; i-- > 0;) {
    const absl::string_view part = bytes.substr(i * kStorePartBytes, kStorePartBytes);
    Check(worker_->Set(Part(key, i), i == 0 ? absl::StrCat(parts, "\n", part) : std::string(part)));
  }
}

std::vector<char> StoreAdaptor::get(const std::string& key) {
  wait({key});
  const std::string first = std::move(first_parts_[key]);
  first_parts_.erase(key);
  const size_t line_end = first.find('\n');
  size_t parts = 0;
  if (line_end == std::string::npos ||
      !absl::SimpleAtoi(absl::string_view(first).substr(0, line_end), &parts)) {
    Check(absl::InternalError(absl::StrCat("the store's key ", Part(key, 0),
                                           " does not hold an address list of this program's")));
  }
  std::vector<char> data(first.begin() + line_end + 1, first.end());
  for (size_t i = 1; i < parts; ++i) {
    const std::string part = Fetch(Part(key, i));
    data.insert(data.end(), part.begin(), part.end());
  }
  return data;
}

void StoreAdaptor::wait(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (first_parts_.count(key) == 0) first_parts_[key] = Fetch(Part(key, 0));
  }
}

void StoreAdaptor::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) {
  // The deadline of the whole connection is what counts.
  wait(keys);
}

void StoreAdaptor::Check(const absl::Status& status) {
  if (status.ok()) return;
  status_ = status;
  throw ::gloo::IoException(status.ToString());
}

std::string StoreAdaptor::Part(const std::string& key, size_t index) const {
  return absl::StrCat(prefix_, "/", key, "#", index);
}

std::string StoreAdaptor::Fetch(const std::string& full_key) {
  auto value = worker_->Get(full_key, std::max(deadline_ - MonoNow(), absl::ZeroDuration()));
  Check(value.status());
  return *std::move(value);
}

}  // namespace cadre::gloo
