// Follows logs that lie on the cluster's nodes, for readers: the end of what is there, then what is
// added. The nodes' agents are asked a few times a second, as long as the reader reads. Used by the
// HTTP server's thread.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_AGENT_LOGS_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_AGENT_LOGS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "rendezvous/web/dashboard/event_streams.h"
#include "rendezvous/web/http/http_server.h"

namespace cadre::web {

class AgentLogs {
 public:
  // `places` are of the HTTP server, which runs nothing once this object is gone. Nothing is asked
  // while there is none: an answer that never came would be waited for.
  AgentLogs(Serving serving, HttpServer::Places places);

  // Begins kTailBytes before the log's end; ends when nothing is added to it any more. What is not
  // there yet, or on a node that is away, is waited for; what may not be read is the reply.
  void Add(std::shared_ptr<HttpExchange> exchange, v1::ReadLogRequest request,
           host::OwnerCheck may = nullptr);
  void Tick();
  // Ends all.
  void Finish();

 private:
  struct Reader {
    std::shared_ptr<HttpExchange> exchange;
    v1::ReadLogRequest request;
    // Asked each time: the name may have come to another owner.
    host::OwnerCheck may;
    bool begun = false;
    bool asked = false;
    // Since the last tick.
    size_t bytes = 0;
  };
  void Ask(const std::shared_ptr<Reader>& reader);
  void Take(const std::shared_ptr<Reader>& reader, const absl::StatusOr<v1::ReadLogReply>& reply);

  const Serving serving_;
  const HttpServer::Places places_;
  std::vector<std::shared_ptr<Reader>> readers_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_AGENT_LOGS_H_
