#include "announcement.h"

namespace cadre::cifar {

std::string TrainingLine(int world_size, int nodes, bool on_gpus) {
  const std::string line = ">>> Training on " + std::to_string(world_size) + " GPUs of " +
                           std::to_string(nodes) + " nodes";
  return on_gpus ? line : line + " (--device cpu: a process on the CPU for each)";
}

std::string ProcessLine(int rank, int gpu, int node) {
  return "- Process " + std::to_string(rank) + " corresponds to GPU " + std::to_string(gpu) +
         " of node " + std::to_string(node);
}

std::string EpochCheckpointName(int world_size, int epoch) {
  return std::to_string(world_size) + "GPU_" + std::to_string(epoch) + "epoch.checkpoint";
}

}  // namespace cadre::cifar
