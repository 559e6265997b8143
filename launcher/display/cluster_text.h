// A cluster's nodes and queue, for people. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_CLUSTER_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_CLUSTER_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// A table with a line for each node.
std::string ClusterNodesTable(const v1::ListNodesReply& nodes);

// "avoids n0: WHY" of each node that the job is kept off; of one that it runs on all the same,
// since it could not without, nothing is said.
std::vector<std::string> AvoidedNodes(const v1::JobStatus& job);
// The same as one text, a line each with its '\n'.
std::string AvoidedText(const v1::JobStatus& job);

// A few lines, however large the cluster: its nodes, which are away or drained, what is in use, how
// many jobs wait and for what the first does. Empty where there is no node.
std::string ClusterSummary(const v1::ListNodesReply& nodes, const std::vector<v1::JobStatus>& jobs);

// Lines about nodes for a pipe: at first those that are not simply up, then each that changes.
class ClusterLines {
 public:
  // Lines without '\n'.
  std::vector<std::string> Update(const v1::ListNodesReply& nodes);

 private:
  bool first_ = true;
  // The line that was given last of each node, by its name.
  std::map<std::string, std::string> told_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_CLUSTER_TEXT_H_
