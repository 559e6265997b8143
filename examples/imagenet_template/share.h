// The share of one process in a job that is given in nodes. Pure.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_SHARE_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_SHARE_H_

#include <cstdint>
#include <vector>

#include "cadre/result.h"

namespace cadre::imagenet {

struct JobSize {
  int nodes = 1;
  int devices_per_node = 1;
  // Of all processes of one node together.
  int batch_size = 256;
  int data_workers = 4;
};

struct Share {
  int world_size = 1;
  int rank = 0;
  int batch_size = 0;
  int data_workers = 0;
};

// The share of the process for one device of one node: there are as many processes as devices, a
// batch is divided between those of the node, and data workers too, rounded up. INVALID_ARGUMENT
// says which number makes no sense.
Result<Share> ShareOf(const JobSize& job, int node_rank, int device);

// Which of so many pictures the process looks at in an evaluation: every n-th, so that of a folder,
// which is sorted by classes, each process sees all classes. No picture counts twice.
std::vector<int64_t> EvaluationPart(int64_t size, const Share& share);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_SHARE_H_
