// The template's flags that describe the job, which its launcher knows already.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_JOB_FLAGS_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_JOB_FLAGS_H_

#include <string>

#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre::imagenet {

struct JobFlags {
  // --world-size, in nodes; below 1 means as many as there are.
  int nodes = -1;
  // --rank, of the node; below 0 means the actual one.
  int node_rank = -1;
  // Below 0, each process of a node has its own GPU.
  int gpu = -1;
  std::string dist_url = "env://";
  // If empty, no backend is asked for.
  std::string dist_backend;
  // --multiprocessing-distributed
  bool process_per_gpu = false;
};

// Whether a launcher has started this process, according to environment variables that Spawn() sets
// too. If not, the program starts its ranks itself.
bool HasLauncher();

// Pure. Fails with INVALID_ARGUMENT, which names the flag that contradicts the job, and the job's
// actual value.
Status CheckJobFlags(const JobFlags& flags, const WorkerPlace& place);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_JOB_FLAGS_H_
