#include "program.h"

#include <cstdio>

#include "../exceptions/exceptions.h"
#include "cadre/connect.h"
#include "cadre/status_macros.h"

namespace cadre {
namespace {

Status Run(const std::function<Status(Worker&, Communicator&)>& body) {
  CommunicatorOptions options;
  options.timeout = kTimeout;
  CADRE_ASSIGN_OR_RETURN(const World world, Connect(options));
  return WithoutExceptions([&] { return body(*world.worker, *world.communicator); });
}

}  // namespace

int ExitStatus(const char* program, const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", program, status.ToString().c_str());
  return 1;
}

int RunAsWorker(const char* program, const std::function<Status(Worker&, Communicator&)>& body) {
  // Line buffering writes whole lines at once, although the output is a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return ExitStatus(program, Run(body));
}

}  // namespace cadre
