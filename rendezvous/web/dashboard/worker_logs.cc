#include "rendezvous/web/dashboard/worker_logs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log_paths.h"
#include "base/status_macros.h"
#include "rendezvous/host/agent_requests.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/web/http/http_server.h"

namespace cadre::web {
namespace {

namespace fs = std::filesystem;

constexpr size_t kJobNameMax = 63;

// The numbers N of the directories `prefix`N in `path`, largest first.
std::set<uint64_t, std::greater<uint64_t>> Numbered(const fs::path& path,
                                                    absl::string_view prefix) {
  std::set<uint64_t, std::greater<uint64_t>> numbers;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename().string();
    absl::string_view name = file;
    uint64_t number = 0;
    if (absl::ConsumePrefix(&name, prefix) && absl::SimpleAtoi(name, &number)) {
      numbers.insert(number);
    }
  }
  return numbers;
}

bool IsNumbered(absl::string_view name, absl::string_view prefix) {
  uint64_t number = 0;
  return absl::ConsumePrefix(&name, prefix) && absl::SimpleAtoi(name, &number);
}

// The directory in which a process that started in another generation continues to write, from the
// link that its agent made; empty: this is no such link.
std::string LinkedTo(const fs::path& directory) {
  std::error_code error;
  const std::string target = fs::read_symlink(directory, error).string();
  absl::string_view rest = target;
  if (error || !absl::ConsumePrefix(&rest, "../")) return "";
  const std::vector<absl::string_view> names = absl::StrSplit(rest, '/');
  const bool known = names.size() == 2 && IsNumbered(names[0], kGenerationPrefix) &&
                     (IsNumbered(names[1], kRankPrefix) || IsNumbered(names[1], kStandbyPrefix));
  return known ? std::string(rest) : "";
}

// The run into which `generation`, a directory's name, is a link, as agents make it for the newest
// run; empty: it is no such link.
std::string LinkedRun(const fs::path& job, const std::string& generation) {
  std::error_code error;
  const std::string target = fs::read_symlink(job / generation, error).string();
  absl::string_view run = target;
  if (error || !absl::ConsumePrefix(&run, kRunPrefix) ||
      !absl::ConsumeSuffix(&run, absl::StrCat("/", generation)) ||
      !std::all_of(run.begin(), run.end(),
                   [](char c) { return absl::ascii_isalnum(c) || c == '.'; })) {
    return "";
  }
  return std::string(run);
}

std::string GenerationJson(uint64_t generation, std::vector<uint64_t> ranks) {
  if (ranks.size() > kListedRanks) ranks.resize(kListedRanks);
  return absl::StrCat("{\"generation\":", generation, ",\"ranks\":[", absl::StrJoin(ranks, ","),
                      "]}");
}

}  // namespace

bool IsJobName(const std::string& name) {
  if (name.empty() || name.size() > kJobNameMax || name[0] == '-') return false;
  for (const char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') return false;
  }
  return true;
}

std::string LogListJson(const std::string& log_dir, const std::string& job,
                        const std::string& run) {
  std::vector<std::string> generations;
  const fs::path root = fs::path(log_dir) / RunSubdirectory(job, run);
  for (const uint64_t generation : Numbered(root, kGenerationPrefix)) {
    if (generations.size() >= kListedGenerations) break;
    const auto found = Numbered(root / GenerationSubdirectory(generation), kRankPrefix);
    generations.push_back(GenerationJson(generation, {found.rbegin(), found.rend()}));
  }
  return absl::StrCat("{\"generations\":[", absl::StrJoin(generations, ","), "]}");
}

std::string LogListJson(const v1::JobStatus& job) {
  std::vector<std::string> generations;
  const auto& all = job.timeline().generations();
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (generations.size() >= kListedGenerations) break;
    std::vector<uint64_t> ranks(std::min<size_t>(one->world_size(), kListedRanks));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (!ranks.empty()) generations.push_back(GenerationJson(one->generation(), std::move(ranks)));
  }
  return absl::StrCat("{\"generations\":[", absl::StrJoin(generations, ","), "]}");
}

absl::StatusOr<v1::ReadLogRequest> ParseLogQuery(const std::string& job,
                                                 const std::map<std::string, std::string>& query) {
  uint64_t generation = 0;
  uint32_t rank = 0;
  const auto number = [&](const char* name, auto* value) {
    const auto found = query.find(name);
    return found != query.end() && absl::SimpleAtoi(found->second, value);
  };
  if (!number("generation", &generation)) {
    return absl::InvalidArgumentError("generation= is expected, with a number");
  }
  if (!number("rank", &rank)) {
    return absl::InvalidArgumentError("rank= is expected, with a number");
  }
  const auto stream = query.find("stream");
  if (stream == query.end() || (stream->second != "stdout" && stream->second != "stderr")) {
    return absl::InvalidArgumentError("stream=stdout or stream=stderr is expected");
  }
  v1::ReadLogRequest request;
  request.set_job(job);
  request.set_generation(generation);
  request.set_rank(rank);
  request.set_standard_error(stream->second == "stderr");
  return request;
}

absl::StatusOr<std::string> LogPath(const std::string& log_dir, const std::string& job,
                                    const std::string& run,
                                    const std::map<std::string, std::string>& query) {
  ASSIGN_OR_RETURN(const v1::ReadLogRequest request, ParseLogQuery(job, query));
  const std::string generation = GenerationSubdirectory(request.generation());
  const std::string root =
      RunSubdirectory(job, run.empty() ? LinkedRun(fs::path(log_dir) / job, generation) : run);
  const std::string requested = RankSubdirectory(request.generation(), request.rank());
  const std::string linked = LinkedTo(fs::path(log_dir) / root / requested);
  return absl::StrCat(root, "/", linked.empty() ? requested : linked,
                      request.standard_error() ? "/stderr.log" : "/stdout.log");
}

LogTails::~LogTails() {
  for (const Tail& tail : tails_) {
    if (tail.fd >= 0) close(tail.fd);
  }
}

void LogTails::Add(std::shared_ptr<HttpExchange> exchange, const std::string& path) {
  if (!exchange->Begin("text/plain; charset=utf-8")) return;
  tails_.push_back({std::move(exchange), path});
  Send(tails_.back());
}

void LogTails::Open(Tail& tail) {
  // Only a regular file: a worker might have replaced it by something that blocks an open, or by a
  // link.
  tail.fd = OpenBelow(root_, tail.path);
  if (tail.fd < 0 && errno != ENOENT) {
    tail.exchange->Write(absl::StrCat("(cannot read ", tail.path, ": ", strerror(errno), ")\n"));
    return tail.exchange->End();
  }
  struct stat found;
  if (tail.fd < 0 || fstat(tail.fd, &found) != 0) return;
  tail.offset = std::max<off_t>(0, found.st_size - static_cast<off_t>(kTailBytes));
}

void LogTails::Send(Tail& tail) {
  if (tail.fd < 0) Open(tail);
  if (tail.fd < 0 || tail.exchange->waiting() >= kTailBytesPerTick) return;
  std::string bytes(kTailBytesPerTick, '\0');
  const ssize_t count = pread(tail.fd, &bytes[0], bytes.size(), tail.offset);
  if (count <= 0) return;
  tail.offset += count;
  bytes.resize(count);
  tail.exchange->Write(bytes);
}

void LogTails::Tick() {
  for (auto tail = tails_.begin(); tail != tails_.end();) {
    if (!tail->exchange->closed()) Send(*tail);
    if (tail->exchange->closed()) {
      if (tail->fd >= 0) close(tail->fd);
      tail = tails_.erase(tail);
    } else {
      ++tail;
    }
  }
}

void LogTails::Finish() {
  Tick();
  for (Tail& tail : tails_) tail.exchange->End();
}

AgentLogs::AgentLogs(Serving serving, HttpServer::Places places)
    : serving_(std::move(serving)), places_(std::move(places)) {}

void AgentLogs::Add(std::shared_ptr<HttpExchange> exchange, v1::ReadLogRequest request,
                    host::OwnerCheck may) {
  request.set_tail(kTailBytes);
  readers_.push_back(std::make_shared<Reader>(
      Reader{std::move(exchange), std::move(request), std::move(may), false, false, 0}));
  RequestChunk(readers_.back());
}

void AgentLogs::Tick() {
  readers_.erase(std::remove_if(readers_.begin(), readers_.end(),
                                [](const auto& reader) { return reader->exchange->closed(); }),
                 readers_.end());
  // A copy, because a request that cannot be sent is answered at once.
  const std::vector<std::shared_ptr<Reader>> readers = readers_;
  for (const std::shared_ptr<Reader>& reader : readers) {
    reader->bytes = 0;
    if (!reader->requested && reader->exchange->waiting() < kTailBytesPerTick) RequestChunk(reader);
  }
}

void AgentLogs::RequestChunk(const std::shared_ptr<Reader>& reader) {
  const auto core = serving_();
  if (!core.ok()) return OnChunk(reader, core.status());
  const HttpServer::Poster post = places_();
  // The next tick tries again.
  if (!post) return;
  reader->requested = true;
  (*core)->AskLog(
      reader->request,
      [this, post, reader](absl::StatusOr<v1::ReadLogReply> reply) {
        post([this, reader, reply = std::move(reply)] { OnChunk(reader, reply); });
      },
      reader->may);
}

void AgentLogs::OnChunk(const std::shared_ptr<Reader>& reader,
                        const absl::StatusOr<v1::ReadLogReply>& reply) {
  reader->requested = false;
  HttpExchange& exchange = *reader->exchange;
  if (exchange.closed()) return;
  const absl::Status& why = reply.status();
  if (!reply.ok() && !absl::IsNotFound(why) && !host::MayReadLater(why)) {
    if (!reader->begun) return ReplyError(exchange, why);
    exchange.Write(absl::StrCat("(", why.message(), ")\n"));
    return exchange.End();
  }
  if (!reader->begun) {
    reader->begun = exchange.Begin(kTextType);
    if (!reader->begun) return;
    // There may be no data for a long time.
    if (absl::IsUnavailable(why)) exchange.Write(absl::StrCat("(", why.message(), ")\n"));
  }
  if (!reply.ok()) return;
  if (reply->ended() && reply->bytes().empty()) return exchange.End();
  exchange.Write(reply->bytes());
  reader->bytes += reply->bytes().size();
  reader->request.clear_tail();
  reader->request.set_offset(reply->offset() + reply->bytes().size());
  const bool more = reply->bytes().size() == host::kLogChunkBytes;
  if (more && reader->bytes < kTailBytesPerTick) RequestChunk(reader);
}

void AgentLogs::Finish() {
  for (const std::shared_ptr<Reader>& reader : readers_) {
    if (reader->begun) reader->exchange->End();
  }
  readers_.clear();
}

int OpenBelow(const std::string& root, absl::string_view relative) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const std::vector<std::string> names = absl::StrSplit(relative, '/', absl::SkipEmpty());
  int fd = open(root.c_str(), kFlags | O_DIRECTORY);
  for (size_t i = 0; i < names.size() && fd >= 0; ++i) {
    const bool last = i + 1 == names.size();
    int next = -1;
    if (names[i] == "..") {
      errno = EINVAL;
    } else {
      next = openat(fd, names[i].c_str(), kFlags | O_NOFOLLOW | (last ? 0 : O_DIRECTORY));
    }
    const int error = errno;
    close(std::exchange(fd, next));
    errno = error;
  }
  struct stat found;
  if (fd < 0 || (fstat(fd, &found) == 0 && S_ISREG(found.st_mode))) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

}  // namespace cadre::web
