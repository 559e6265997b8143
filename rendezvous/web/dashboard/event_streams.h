// Sends server-sent events (the HTML standard, 9.2) to dashboard readers: the list of jobs, the
// cluster's nodes, and one job if they ask for it, whenever the part that they may see has changed.
// The core is polled a few times a second while there is a reader, once for all readers. Used by
// the HTTP server's thread.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_EVENT_STREAMS_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_EVENT_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bearer_token.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/web/http/http_server.h"

namespace cadre::web {

// The number of ticks between two comments that show that the server is alive.
inline constexpr int kTicksBetweenComments = 40;
// A reader with more unread bytes is behind: it gets the newest state once it has read them.
inline constexpr size_t kBehindBytes = 64 << 10;

// Returns the core that serves calls at present, or why there is none. Thread safe.
using Serving = std::function<absl::StatusOr<std::shared_ptr<host::CoreThread>>()>;

class EventStreams {
 public:
  // `places` is the HTTP server's TakePlace; the server runs no task after this object is
  // destroyed. Without a free place no request is made, because its answer would never come.
  EventStreams(Serving serving, HttpServer::Places places);

  // Sends events "jobs" (JobsJson) and "nodes" (NodesJson), if `job` is set also "job" (JobJson, or
  // null if there is no such job), and "trouble" with a line of text when no core serves. Ends when
  // the bearer's token expires.
  void Add(std::shared_ptr<HttpExchange> exchange, const std::string& job, const Bearer& bearer);

  void Tick();

  // Sends all readers the last state, then ends all streams.
  void Finish();

 private:
  // What readers with the same rights see of a subject.
  struct View {
    // Counts the changes; 0: there is no answer yet.
    uint64_t version = 0;
    std::string serialized;
    std::string event;
  };
  // What readers follow: one job, or the lists that all readers get.
  struct Subject {
    bool requested = false;
    // The keys are those of ViewerOf.
    std::map<std::string, View> views;
  };
  struct Reader {
    std::shared_ptr<HttpExchange> exchange;
    std::string job;
    Bearer bearer;
    // The last version of each subject that was sent.
    std::map<std::string, uint64_t> sent;
    bool behind = false;
  };
  // Updates a view to what the bearer may see.
  using Show = std::function<void(const Bearer&, View&)>;

  void RequestUpdate(const std::string& name, Subject& subject);
  // `event` makes an event of the answer.
  template <typename Answer, typename Event>
  void TakeAnswer(const std::string& name, const absl::StatusOr<Answer>& answer,
                  const Event& event);
  void UpdateViews(const std::string& name, const Show& show);
  void SendIfChanged(Reader& reader, const std::string& name, const View& view);
  void EndIfFinished();

  const Serving serving_;
  const HttpServer::Places places_;
  std::vector<Reader> readers_;
  std::map<std::string, Subject> subjects_;
  int ticks_ = 0;
  bool finishing_ = false;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_EVENT_STREAMS_H_
