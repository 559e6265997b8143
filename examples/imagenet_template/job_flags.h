// The template's flags that say of the job what its launcher knows already.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_JOB_FLAGS_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_JOB_FLAGS_H_

#include <string>

#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre::imagenet {

struct JobFlags {
  // --world-size, in nodes; below 1: as many as there are.
  int nodes = -1;
  // --rank, of the node; below 0: what it is.
  int node_rank = -1;
  // Below 0: each process of a node has its own.
  int gpu = -1;
  std::string dist_url = "env://";
  // Empty: none is asked for.
  std::string dist_backend;
  // --multiprocessing-distributed
  bool process_per_gpu = false;
};

// Whether a launcher has started this process, told by the variables that Spawn() tells it by too.
// Where none has, the program starts its ranks itself.
bool HasLauncher();

// Pure. INVALID_ARGUMENT: which flag contradicts the job, and what it is.
Status CheckJobFlags(const JobFlags& flags, const WorkerPlace& place);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_JOB_FLAGS_H_
