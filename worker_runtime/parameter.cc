#include "cadre/parameter.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/backend/group.h"
#include "worker_runtime/shared_memory/segment.h"

namespace cadre {
namespace {

// The bytes for one rank's message in the exchange of verdicts.
constexpr size_t kVerdictBytes = 512;
// The number of broadcasts that run at a time: enough that none waits for the caller, and far fewer
// than a communicator can queue, whatever the number of parameters.
constexpr size_t kMostBroadcasts = 64;
// The most bytes of the descriptions of all of rank 0's parameters.
constexpr int64_t kMaxTableBytes = int64_t{64} << 20;

std::string Describe(const Parameter& parameter) {
  std::string text =
      absl::StrCat("'", absl::CHexEscape(parameter.name), "' ", backend::Name(parameter.value.type),
                   " with ", parameter.value.count, " elements");
  if (!parameter.shape.empty()) {
    absl::StrAppend(&text, " [", absl::StrJoin(parameter.shape, ", "), "]");
  }
  if (!parameter.kept_as.empty()) absl::StrAppend(&text, ", kept as ", parameter.kept_as);
  return text;
}

std::vector<std::string> DescribeAll(Span<const Parameter> parameters) {
  std::vector<std::string> lines;
  lines.reserve(parameters.size());
  for (const Parameter& parameter : parameters) lines.push_back(Describe(parameter));
  return lines;
}

Buffer Bytes(void* data, size_t count) { return {data, count, DataType::kUint8}; }

// The first difference of `mine`, or empty.
std::string Compare(int rank, const std::vector<std::string>& mine,
                    const std::vector<std::string>& first) {
  for (size_t i = 0; i < std::min(mine.size(), first.size()); ++i) {
    if (mine[i] == first[i]) continue;
    return absl::StrCat("parameter ", i, " is ", mine[i], " on rank ", rank, " but ", first[i],
                        " on rank 0");
  }
  if (mine.size() == first.size()) return "";
  const bool more = mine.size() > first.size();
  return absl::StrCat("rank ", rank, " has ", mine.size(), " parameters but rank 0 has ",
                      first.size(), "; only rank ", more ? rank : 0, " has ",
                      more ? mine[first.size()] : first[mine.size()]);
}

uint64_t Mix(uint64_t hash, uint64_t word) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15u;
  hash = (hash ^ word) * kPrime;
  return hash ^ (hash >> 29);
}

// Uses four chains, because one would wait for the latency of its multiplications.
uint64_t Hash(const void* data, size_t bytes, uint64_t hash) {
  constexpr size_t kLanes = 4;
  constexpr size_t kWord = sizeof(uint64_t);
  const auto* at = static_cast<const unsigned char*>(data);
  std::array<uint64_t, kLanes> lanes = {hash, hash + 1, hash + 2, hash + 3};
  for (; bytes >= kLanes * kWord; at += kLanes * kWord, bytes -= kLanes * kWord) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = Mix(lanes[i], words[i]);
  }
  hash = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) hash = Mix(hash, lanes[i]);
  while (bytes > 0) {
    uint64_t word = 0;
    const size_t take = std::min(bytes, kWord);
    std::memcpy(&word, at, take);
    hash = Mix(hash, word);
    at += take;
    bytes -= take;
  }
  return hash;
}

uint64_t HashOf(const Parameter& parameter) {
  return Hash(parameter.value.data, parameter.value.count * SizeOf(parameter.value.type), 1);
}

}  // namespace

Status CheckReducible(Span<const Parameter> parameters, size_t most) {
  if (parameters.empty()) {
    return InvalidArgumentError("there are no parameters whose gradients could be reduced");
  }
  if (parameters.size() > most) {
    return InvalidArgumentError(
        absl::StrCat(parameters.size(), " parameters; at most ", most, " can be reduced together"));
  }
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return InvalidArgumentError(
          absl::StrCat("two parameters have the name '", absl::CHexEscape(parameter.name), "'"));
    }
    if (parameter.value.type != DataType::kFloat32 && parameter.value.type != DataType::kFloat64) {
      return InvalidArgumentError(
          absl::StrCat("parameter '", absl::CHexEscape(parameter.name), "' is ",
                       backend::Name(parameter.value.type),
                       "; gradients that are reduced must be float32 or float64"));
    }
  }
  return OkStatus();
}

Status CheckSameParameters(Communicator& communicator, Span<const Parameter> parameters,
                           std::chrono::nanoseconds timeout) {
  if (communicator.size() == 1) return OkStatus();
  const std::vector<std::string> mine = DescribeAll(parameters);
  ASSIGN_OR_RETURN(
      const std::string text,
      backend::BroadcastBytes(communicator, absl::StrJoin(mine, "\n"), 0, kMaxTableBytes, timeout));
  std::vector<std::string> first;
  if (!text.empty()) first = absl::StrSplit(text, '\n');
  std::string verdict = Compare(communicator.rank(), mine, first);
  verdict.resize(kVerdictBytes, '\0');
  verdict.back() = '\0';
  std::string all(kVerdictBytes * communicator.size(), '\0');
  RETURN_IF_ERROR(WaitOrAbort(
      communicator,
      communicator.AllGather(Bytes(&verdict[0], verdict.size()), Bytes(&all[0], all.size())),
      timeout));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const char* complaint = all.data() + rank * kVerdictBytes;
    if (*complaint == '\0') continue;
    return InvalidArgumentError(
        absl::StrCat(complaint,
                     "; all ranks must build the same model and train the same parameters of it "
                     "(requires_grad)"));
  }
  return OkStatus();
}

Status BroadcastParameters(Communicator& communicator, Span<const Parameter> parameters,
                           std::chrono::nanoseconds timeout) {
  if (communicator.size() == 1) return OkStatus();
  std::deque<std::shared_ptr<Work>> under_way;
  Status status;
  const auto finish_oldest = [&] {
    status.Update(WaitOrAbort(communicator, under_way.front(), timeout));
    under_way.pop_front();
  };
  for (const Parameter& parameter : parameters) {
    if (parameter.value.count == 0) continue;
    if (under_way.size() == kMostBroadcasts) finish_oldest();
    if (!status.ok()) break;
    under_way.push_back(communicator.Broadcast(parameter.value, 0));
  }
  while (!under_way.empty()) finish_oldest();
  return status;
}

void MoveToHugePages(Span<const Parameter> parameters, std::chrono::nanoseconds patience) {
  const MonoTime deadline = MonoNow() + patience;
  for (const Parameter& parameter : parameters) {
    const Buffer& value = parameter.value;
    shared_memory::MoveToHugePages(value.data, value.count * SizeOf(value.type), deadline);
  }
}

uint64_t Fingerprint(Span<const Parameter> parameters) {
  uint64_t total = 0;
  for (const Parameter& parameter : parameters) total = Mix(total, HashOf(parameter));
  return total == 0 ? 1 : total;
}

Result<uint64_t> CheckEqualValues(Communicator& communicator, Span<const Parameter> parameters,
                                  std::chrono::nanoseconds timeout) {
  std::vector<int64_t> mine;
  uint64_t total = 0;
  for (const Parameter& parameter : parameters) {
    const uint64_t hash = HashOf(parameter);
    total = Mix(total, hash);
    mine.push_back(static_cast<int64_t>(hash));
  }
  if (communicator.size() == 1 || mine.empty()) return total;
  std::vector<int64_t> all(mine.size() * communicator.size());
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllGather({mine.data(), mine.size(), DataType::kInt64},
                                                     {all.data(), all.size(), DataType::kInt64}),
                              timeout));
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<int> differing;
    for (int rank = 1; rank < communicator.size(); ++rank) {
      if (all[rank * mine.size() + i] != all[i]) differing.push_back(rank);
    }
    if (differing.empty()) continue;
    return DataLossError(absl::StrCat(
        "parameter '", absl::CHexEscape(parameters[i].name), "' differs from rank 0's on rank",
        differing.size() > 1 ? "s " : " ", absl::StrJoin(differing, ", ")));
  }
  return total;
}

}  // namespace cadre
