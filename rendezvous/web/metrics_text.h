// The server's state and counters in Prometheus's text format, version 0.0.4. Pure.
//
// prometheus-cpp is not used because Debian has it only as a shared library, and cadre is a single
// executable without any.
#ifndef CADRE_RENDEZVOUS_WEB_METRICS_TEXT_H_
#define CADRE_RENDEZVOUS_WEB_METRICS_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/host/server_view.h"

namespace cadre::web {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// The number of jobs with series of their own. Further live jobs are only in the sums; ended jobs
// have no series.
inline constexpr size_t kJobsWithSeries = 100;

// nullopt: this server is a standby, which is all that it reports.
std::string MetricsText(const std::optional<host::ServerView>& view);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_METRICS_TEXT_H_
