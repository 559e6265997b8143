// The output lines and file names that users know from the program that clusters teach with. Pure.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_ANNOUNCEMENT_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_ANNOUNCEMENT_H_

#include <string>

namespace cadre::cifar {

// Returns ">>> Training on 4 GPUs of 2 nodes"; without GPUs it says "processes" instead.
std::string TrainingLine(int world_size, int nodes, bool on_gpus);

// Returns, for example, "- Process 3 corresponds to GPU 1 of node 1".
std::string ProcessLine(int rank, int gpu, int node);

// Returns, for example, "4GPU_2epoch.checkpoint": after the second epoch of four ranks.
std::string EpochCheckpointName(int world_size, int epoch);

}  // namespace cadre::cifar

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_ANNOUNCEMENT_H_
