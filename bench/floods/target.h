// A server that is flooded, with what depends on it: an agent, and a job whose lease must be
// renewed. Also what all kinds of servers need for that: programs that run beside the bench,
// callers that keep to the protocol, and the list of floods.
#ifndef CADRE_BENCH_FLOODS_TARGET_H_
#define CADRE_BENCH_FLOODS_TARGET_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "tests/testing/flooding_connection.h"
#include "tests/testing/http2_flood.h"
#include "tests/testing/http2_frames.h"
#include "tests/testing/process.h"

namespace cadre {

// Starts a program whose output goes to the file `log`, because the bench does not read pipes while
// it measures. One thread uses it.
absl::StatusOr<std::unique_ptr<Process>> StartDaemon(const std::vector<std::string>& argv,
                                                     const std::string& log);
// Waits for `text` in the log and returns the rest of its line. If the program ends before, or time
// runs out, the error's message is the log.
absl::StatusOr<std::string> AwaitInLog(Process& program, const std::string& log,
                                       const std::string& text, absl::Duration timeout);
// Runs a command. If it does not exit with 0 within the timeout it is killed, and its output is the
// error's message.
absl::Status RunCommand(const std::vector<std::string>& argv, absl::Duration timeout,
                        std::string* output = nullptr);

struct CalledServer {
  int port = 0;
  bool tls = false;
  // Sent with each call as metadata cadre-token; empty: none is sent.
  std::string token;
};

// A client of a gRPC server that keeps to the protocol, with a deadline for each call. It waits for
// nothing but the server: it has no channel that backs off, and resolves no name. One thread.
class HonestCaller {
 public:
  explicit HonestCaller(CalledServer server);

  // Makes a call and returns the reply's bytes; with `one_reply`, the first reply of a stream. It
  // uses the connection of the last call if it still stands, otherwise a new one. After
  // DEADLINE_EXCEEDED and UNAVAILABLE (the connection ended) the next call opens a new connection.
  absl::StatusOr<std::string> Call(const std::string& path, absl::string_view request,
                                   absl::Duration timeout, bool one_reply = false);
  void Disconnect();

 private:
  struct Answer {
    std::string data;
    bool over = false;
    int status = -1;
  };
  absl::Status Connect();
  absl::Status Wait(bool to_write);
  absl::Status Flush();
  absl::Status ReadUntil(uint32_t stream, bool one_reply, Answer* answer);
  void OnFrame(const http2::FrameHeader& header, absl::string_view payload, uint32_t stream,
               Answer* answer);

  const CalledServer server_;
  const SslContext context_;
  FloodSocket socket_;
  MonoTime deadline_;
  std::string in_, out_;
  uint32_t next_stream_ = 1;
};

// A flood of programs, each of which is started over and over again. One thread at a time.
class ProgramFlood {
 public:
  ProgramFlood(const std::vector<std::string>& argv, int loops);
  ~ProgramFlood() { Stop(); }
  ProgramFlood(const ProgramFlood&) = delete;
  ProgramFlood& operator=(const ProgramFlood&) = delete;

  void Stop();

 private:
  std::vector<std::unique_ptr<Process>> loops_;
};

struct FloodCase {
  // "rapid reset", "squeue in 64 loops"
  std::string name;
  // "no token", "read-only token", "user's token"; empty if the server has no tokens.
  std::string token;
  // "clear", "TLS"
  std::string transport;
  // "1 connection", "64 connections"
  std::string from;
  FloodOptions options;
  // If not empty: a program that is started instead of the flood, over and over again.
  std::vector<std::string> program;
  int programs = 0;

  std::string Text() const;
};

// When a call returns, nothing that it started runs any more.
class Target {
 public:
  virtual ~Target() = default;

  virtual std::string name() const = 0;
  // Starts a fresh server with an agent and a running job. The error names what this machine lacks.
  virtual absl::Status Start() = 0;
  // All cases, in the same order before Start, when ports and tokens are unknown, and after it.
  virtual std::vector<FloodCase> Cases() const = 0;
  virtual pid_t pid() const = 0;

  // The following three may be called at once, each by one thread. Launch runs a job that does
  // nothing, from its start to its end, or what is nearest to that for this kind of server.
  virtual absl::Status Launch(int number, absl::Duration timeout) = 0;
  // Make an honest call on an open connection, and on a new one. UNIMPLEMENTED: this kind of server
  // has no such connection.
  virtual absl::Status KeptCall(absl::Duration timeout) = 0;
  virtual absl::Status NewCall(absl::Duration timeout) = 0;

  // Describes leases that were not renewed in time, and what else was lost since the start.
  virtual std::vector<std::string> Lost() = 0;
};

// The floods that can be sent to any HTTP/2 server: in clear or through TLS, from one connection or
// 64. With a token, each connection begins with an honest call.
std::vector<FloodCase> Http2Cases(const FloodOptions& to, const std::string& token_text);
// Appends the case with 1 connection, and with 64 that come from different addresses.
void AppendFromFewAndMany(FloodCase one, std::vector<FloodCase>* cases);

}  // namespace cadre

#endif  // CADRE_BENCH_FLOODS_TARGET_H_
