#include "agent/evidence/torch/flight_recorder.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/text.h"
#include "nlohmann/json.hpp"
#include "rpc/message_limits.h"

namespace cadre::agent {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxShapeBytes = 128;
// The number of a group's ranks that its description lists.
constexpr size_t kMaxRanksInName = 8;

// Returns an invalid descriptor if no process listens, or if the Unix socket's backlog is full.
ScopedFd ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ScopedFd();
  std::memcpy(address.sun_path, path.data(), path.size());
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (fd.ok() && connect(fd.get(), to, sizeof(address)) != 0) return ScopedFd();
  return fd;
}

struct Query {
  ScopedFd fd;
  std::string answer;
  bool whole = false;
};

// Reads what has come. The socket is closed at the end of the answer, or if it is too long.
void Read(Query* query) {
  char buffer[8192];
  const ssize_t n = read(query->fd.get(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  query->whole = n == 0;
  if (n > 0) query->answer.append(buffer, static_cast<size_t>(n));
  if (n <= 0 || query->answer.size() > kMaxFlightRecordBytes) query->fd = ScopedFd();
}

// Returns false if no socket is open any more, or the time is over.
bool ReadSome(std::vector<Query>* all, MonoTime deadline) {
  std::vector<pollfd> polled;
  for (const Query& query : *all) {
    // poll() ignores negative descriptors.
    polled.push_back({query.fd.ok() ? query.fd.get() : -1, POLLIN, 0});
  }
  const bool open =
      std::any_of(polled.begin(), polled.end(), [](auto& one) { return one.fd >= 0; });
  const int64_t left_ms = absl::ToInt64Milliseconds(deadline - MonoNow());
  if (!open || left_ms <= 0) return false;
  if (poll(polled.data(), polled.size(), static_cast<int>(left_ms)) < 0) return errno == EINTR;
  for (size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents != 0) Read(&(*all)[i]);
  }
  return true;
}

// Any other number, such as 1e300, is 0, since the library's conversion of it is undefined.
uint64_t NumberOf(const json& value) {
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

std::string NumbersOf(const json& values) {
  std::vector<uint64_t> numbers;
  for (const json& value : values) numbers.push_back(NumberOf(value));
  return absl::StrJoin(numbers, ", ");
}

// For example "[4, 3], []"; repeated equal sizes as "8 x [2]".
std::string SizesOf(const json& sizes) {
  std::string text;
  for (size_t i = 0; sizes.is_array() && i < sizes.size();) {
    size_t alike = 1;
    while (i + alike < sizes.size() && sizes[i + alike] == sizes[i]) ++alike;
    if (sizes[i].is_array()) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", alike > 1 ? absl::StrCat(alike, " x ") : "",
                      "[", NumbersOf(sizes[i]), "]");
    }
    i += alike;
  }
  return text;
}

// One side of a call: "[4, 3] Float".
std::string SideOf(const json& call, const char* sizes, const char* types) {
  std::string text = SizesOf(call.value(sizes, json::array()));
  for (const json& type : call.value(types, json::array())) {
    absl::StrAppend(&text, text.empty() ? "" : " ", type.get<std::string>());
  }
  return text;
}

// The shape that all ranks must pass, after PyTorch's own analyzer
// (torch/distributed/flight_recorder/components/types.py, Op.match): both sides, except where ranks
// may differ in one. "[8] Float -> [2] Float" if the sides differ.
std::string ShapeOf(absl::string_view name, const json& call) {
  if (name == "barrier" || absl::StrContains(name, "all_to_all")) return "";
  const std::string in = SideOf(call, "input_sizes", "input_dtypes");
  const std::string out = SideOf(call, "output_sizes", "output_dtypes");
  if (name == "scatter") return out;
  if (name == "gather" || in == out || out.empty()) return in;
  return in.empty() ? out : absl::StrCat(in, " -> ", out);
}

// Names come from the program and may be in any encoding.
std::string Clean(const std::string& name, size_t most = kMaxNameBytes) {
  return OneLine(ReplaceInvalidUtf8(name), most);
}

// Strips the backend: "gloo:all_reduce", "nccl:_all_gather_base".
std::string NameOf(const json& record) {
  const std::string name = record.at("name").get<std::string>();
  return Clean(name.substr(name.rfind(':') + 1));
}

v1::CollectiveCall CallOf(const json& record) {
  v1::CollectiveCall call;
  call.set_number(NumberOf(record.at("number")));
  call.set_name(NameOf(record));
  // For coalesced calls the parts must be the same, and the whole has no shape.
  std::string shape = record.contains("parts") ? "" : ShapeOf(call.name(), record);
  for (const json& part : record.value("parts", json::array())) {
    const std::string name = NameOf(part);
    absl::StrAppend(&shape, shape.empty() ? "" : "; ", name, " ", ShapeOf(name, part));
  }
  call.set_shape(Clean(shape, kMaxShapeBytes));
  call.set_pending(record.at("pending").get<bool>());
  return call;
}

// The global rank of this group rank; -1: unknown.
int32_t RankOf(const v1::ProcessGroupCalls& group, const json& number) {
  const uint64_t index = NumberOf(number);
  const bool known =
      number.is_number_unsigned() && index < static_cast<uint64_t>(group.ranks_size());
  return known ? group.ranks(static_cast<int>(index)) : -1;
}

// "default_pg"; for other groups with their members: "mesh_dp (ranks 0, 2)", "3 (ranks 0, 1 and 62
// more)".
std::string DescriptionOf(const std::string& group, const json& record) {
  const std::string description = record.at("description").get<std::string>();
  if (description == "default_pg") return description;
  json ranks = record.at("ranks");
  const uint64_t size = NumberOf(record.at("size"));
  if (ranks.size() > kMaxRanksInName) ranks.erase(ranks.begin() + kMaxRanksInName, ranks.end());
  const uint64_t more = size > ranks.size() ? size - ranks.size() : 0;
  return absl::StrCat(description.empty() ? group.substr(0, group.find('/')) : Clean(description),
                      " (ranks ", NumbersOf(ranks),
                      more > 0 ? absl::StrCat(" and ", more, " more)") : ")");
}

v1::ProcessGroupCalls GroupOf(const json& record) {
  v1::ProcessGroupCalls group;
  group.set_group(Clean(record.at("group").get<std::string>()));
  group.set_description(DescriptionOf(group.group(), record));
  group.set_last(NumberOf(record.at("last")));
  for (const json& call : record.at("calls")) {
    if (group.calls_size() == rpc::kGroupCallsMax) break;
    *group.add_calls() = CallOf(call);
  }
  const json& ranks = record.at("ranks");
  if (ranks.size() != NumberOf(record.at("size")) || ranks.size() > rpc::kGroupRanksMax)
    return group;
  for (const json& rank : ranks) group.add_ranks(static_cast<int32_t>(NumberOf(rank)));
  for (const json& message : record.value("messages", json::array())) {
    if (group.messages_size() == rpc::kGroupCallsMax) break;
    v1::CollectiveCall& added = *group.add_messages();
    added.set_name(NameOf(message));
    added.set_pending(true);
    added.set_from(RankOf(group, message.at("from")));
    added.set_to(RankOf(group, message.at("to")));
  }
  return group;
}

}  // namespace

std::string FlightRecorderSocket(const std::string& stack_file, pid_t process) {
  return absl::StrCat(stack_file, ".calls.", process);
}

std::vector<std::string> FlightRecordsOf(const std::vector<std::string>& sockets,
                                         MonoTime deadline) {
  std::vector<Query> all;
  for (const std::string& path : sockets) all.push_back({ConnectTo(path), "", false});
  while (ReadSome(&all, deadline)) {
  }
  std::vector<std::string> answers;
  for (Query& query : all) answers.push_back(query.whole ? std::move(query.answer) : "");
  return answers;
}

std::vector<v1::ProcessGroupCalls> ParseFlightRecord(absl::string_view answer) {
  std::vector<v1::ProcessGroupCalls> groups;
  try {
    const json record = json::parse(answer.begin(), answer.end());
    for (const json& group : record) {
      if (groups.size() == rpc::kProcessGroupsMax) break;
      groups.push_back(GroupOf(group));
    }
  } catch (const json::exception&) {
    return {};
  }
  return groups;
}

}  // namespace cadre::agent
