// The output of a job's workers for dashboard readers: which there is, and each log's end,
// followed. Files on this machine are DIR/JOB/run_RUN/generation_G/rank_R/{stdout,stderr}.log;
// those of submitted jobs are read through the agents of their nodes. Used by the HTTP server's
// thread, which a disk that does not answer blocks.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_WORKER_LOGS_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_WORKER_LOGS_H_

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "rendezvous/web/dashboard/event_streams.h"
#include "rendezvous/web/http/http_server.h"

namespace cadre::web {

// Lists contain the newest generations, and the first ranks of each.
inline constexpr size_t kListedGenerations = 64;
inline constexpr size_t kListedRanks = 1024;

// {"generations": [{"generation": 2, "ranks": [0, 1]}, ...]}, newest first. Here and below an empty
// `run` means the newest one that exists.
std::string LogListJson(const std::string& log_dir, const std::string& job, const std::string& run);

// The same for the generations and ranks of the job's timeline.
std::string LogListJson(const v1::JobStatus& job);

// Parses a query: "generation", "rank" and "stream" (stdout or stderr). INVALID_ARGUMENT names the
// missing field.
absl::StatusOr<v1::ReadLogRequest> ParseLogQuery(const std::string& job,
                                                 const std::map<std::string, std::string>& query);

// Returns the path, below the log directory, of the file that the query names. If the rank belongs
// to a process that started in another generation, its file is there. Errors as ParseLogQuery.
absl::StatusOr<std::string> LogPath(const std::string& log_dir, const std::string& job,
                                    const std::string& run,
                                    const std::map<std::string, std::string>& query);

// Whether the name is valid for a job, and so safe in a path.
bool IsJobName(const std::string& name);

// Opens the regular file root/relative for reading; -1 with errno on failure. Other users may
// control the content of the directory, so below `root` it follows no symbolic link and never
// blocks: ELOOP or ENOTDIR for a link, EINVAL for other kinds of files or for a name with "..".
int OpenBelow(const std::string& root, absl::string_view relative);

// How much of the end of an existing file is shown.
inline constexpr size_t kTailBytes = 64 << 10;
// The limit of bytes read from a file at one tick; while that many are unread nothing is read.
inline constexpr size_t kTailBytesPerTick = 256 << 10;

// Follows files for readers: the end of each file, then what is added.
class LogTails {
 public:
  // Files must be regular files below the directory `root`.
  explicit LogTails(std::string root) : root_(std::move(root)) {}
  ~LogTails();
  LogTails(const LogTails&) = delete;
  LogTails& operator=(const LogTails&) = delete;

  // `path` is relative to the root. It waits for a file that does not exist yet; if one cannot be
  // read, the reader gets the reason instead.
  void Add(std::shared_ptr<HttpExchange> exchange, const std::string& path);
  void Tick();
  // Sends what is left and ends all readers.
  void Finish();

 private:
  struct Tail {
    std::shared_ptr<HttpExchange> exchange;
    std::string path;
    int fd = -1;
    off_t offset = 0;
  };
  void Open(Tail& tail);
  void Send(Tail& tail);

  const std::string root_;
  std::vector<Tail> tails_;
};

// Follows logs on the cluster's nodes for readers: the end of each log, then what is added. It
// polls the nodes' agents a few times a second while there is a reader.
class AgentLogs {
 public:
  // `places` is the HTTP server's TakePlace; the server runs no task after this object is
  // destroyed. Without a free place no request is made, because its answer would never come.
  AgentLogs(Serving serving, HttpServer::Places places);

  // Begins kTailBytes before the log's end, and ends when the log is complete. It waits for a log
  // that does not exist yet or whose node is away; the reply to a log that may not be read is an
  // error.
  void Add(std::shared_ptr<HttpExchange> exchange, v1::ReadLogRequest request,
           host::OwnerCheck may = nullptr);
  void Tick();
  // Ends all readers.
  void Finish();

 private:
  struct Reader {
    std::shared_ptr<HttpExchange> exchange;
    v1::ReadLogRequest request;
    // Checked at each request, because the job's name may have passed to another owner.
    host::OwnerCheck may;
    bool begun = false;
    bool requested = false;
    // Bytes since the last tick.
    size_t bytes = 0;
  };
  void RequestChunk(const std::shared_ptr<Reader>& reader);
  void OnChunk(const std::shared_ptr<Reader>& reader,
               const absl::StatusOr<v1::ReadLogReply>& reply);

  const Serving serving_;
  const HttpServer::Places places_;
  std::vector<std::shared_ptr<Reader>> readers_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_WORKER_LOGS_H_
