// The share of one process in a job that is given in nodes. Pure.
// Implemented in job_flags.cc.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_SHARE_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_SHARE_H_

#include <cstdint>
#include <vector>

#include "cadre/result.h"

namespace cadre::imagenet {

struct JobSize {
  int nodes = 1;
  int devices_per_node = 1;
  // The batch of all processes of one node together.
  int batch_size = 256;
  int data_workers = 4;
};

struct Share {
  int world_size = 1;
  int rank = 0;
  int batch_size = 0;
  int data_workers = 0;
};

// Returns the share of the process for one device of one node. There are as many processes as
// devices; a batch is divided between those of the node, and so are the data workers, rounded up.
// Fails with INVALID_ARGUMENT, which names the number that makes no sense.
Result<Share> ShareOf(const JobSize& job, int node_rank, int device);

// Returns which of `size` pictures the process evaluates: every n-th, so that each process sees all
// classes of a folder, which is sorted by class. No picture counts twice.
std::vector<int64_t> EvaluationPart(int64_t size, const Share& share);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_SHARE_H_
