// The server's state and counters in Prometheus's text format, version 0.0.4. Pure.
//
// Written here and not by prometheus-cpp because Debian has that as a shared library only, and
// cadre is one file that needs none.
#ifndef CADRE_RENDEZVOUS_WEB_METRICS_TEXT_H_
#define CADRE_RENDEZVOUS_WEB_METRICS_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/host/server_view.h"

namespace cadre::web {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// Jobs with series of their own. Of more that live, the others are in the sums only; a job that has
// ended has none.
inline constexpr size_t kJobsWithSeries = 100;

// nullopt: this server is in reserve, and says that alone.
std::string MetricsText(const std::optional<host::ServerView>& view);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_METRICS_TEXT_H_
