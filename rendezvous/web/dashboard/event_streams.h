// Server-sent events (the HTML standard, 9.2): readers are told of the list of jobs, the cluster's
// nodes, and of one job where they ask for one, whenever what they may see of it has changed. The
// core is looked at a few times a second as long as there is a reader, once for all of them. Used
// by the HTTP server's thread.
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

// Ticks from one comment that shows that the server is there to the next.
inline constexpr int kTicksBetweenComments = 40;
// A reader for whom so much waits is behind: it is told the newest state once it has read that.
inline constexpr size_t kBehindBytes = 64 << 10;

// Where calls go at present, or why nowhere. Thread safe.
using Serving = std::function<absl::StatusOr<std::shared_ptr<host::CoreThread>>()>;

class EventStreams {
 public:
  // `places` are of the HTTP server, which runs nothing once this object is gone. Nothing is asked
  // while there is none: an answer that never came would be waited for.
  EventStreams(Serving serving, HttpServer::Places places);

  // Events "jobs" (JobsJson) and "nodes" (NodesJson), with a job named also "job" (JobJson, or null
  // where there is no such job), and "trouble" with a line of text when nobody serves here. Until
  // the bearer's token ends.
  void Add(std::shared_ptr<HttpExchange> exchange, const std::string& job, const Bearer& bearer);

  void Tick();

  // Tells everybody the last state, then ends all streams.
  void Finish();

 private:
  // What readers with the same rights see of a subject.
  struct View {
    // Counts its changes; 0: nothing is known yet.
    uint64_t version = 0;
    std::string serialized;
    std::string event;
  };
  // Something that is read: one job, or the lists that all read.
  struct Subject {
    bool asked = false;
    // By ViewerOf.
    std::map<std::string, View> views;
  };
  struct Reader {
    std::shared_ptr<HttpExchange> exchange;
    std::string job;
    Bearer bearer;
    // The version of each subject that it has.
    std::map<std::string, uint64_t> told;
    bool behind = false;
  };
  // Brings a view up to date, as this bearer sees it.
  using Show = std::function<void(const Bearer&, View&)>;

  void Ask(const std::string& name, Subject& subject);
  // `event` makes an event of what is shown.
  template <typename Answer, typename Event>
  void TakeAnswer(const std::string& name, const absl::StatusOr<Answer>& answer,
                  const Event& event);
  void Take(const std::string& name, const Show& show);
  void Tell(Reader& reader, const std::string& name, const View& view);
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
