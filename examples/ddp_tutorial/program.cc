#include "examples/ddp_tutorial/program.h"

#include <cstdio>
#include <exception>
#include <string>

#include "base/status_macros.h"
#include "worker_runtime/connect.h"

namespace cadre {
namespace {

absl::Status Run(const std::function<absl::Status(Worker&, Communicator&)>& body) {
  CADRE_ASSIGN_OR_RETURN(auto worker, Worker::Connect());
  CommunicatorOptions options;
  options.timeout = kTimeout;
  CADRE_ASSIGN_OR_RETURN(auto communicator, Connect(*worker, options));
  try {
    return body(*worker, *communicator);
  } catch (const std::exception& error) {
    // libtorch adds a backtrace.
    const std::string what = error.what();
    return absl::InternalError(what.substr(0, what.find('\n')));
  }
}

}  // namespace

int RunAsWorker(const char* program,
                const std::function<absl::Status(Worker&, Communicator&)>& body) {
  // Whole lines, at once: the output goes to a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const absl::Status status = Run(body);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", program, status.ToString().c_str());
  return 1;
}

}  // namespace cadre
