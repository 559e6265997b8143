// The lines and names by which the program that clusters teach with is known. Pure.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_ANNOUNCEMENT_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_ANNOUNCEMENT_H_

#include <string>

namespace cadre::cifar {

// ">>> Training on 4 GPUs of 2 nodes", and that they are processes where there are no GPUs.
std::string TrainingLine(int world_size, int nodes, bool on_gpus);

// "- Process 3 corresponds to GPU 1 of node 1".
std::string ProcessLine(int rank, int gpu, int node);

// "4GPU_2epoch.checkpoint": after the second epoch of four ranks.
std::string EpochCheckpointName(int world_size, int epoch);

}  // namespace cadre::cifar

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_ANNOUNCEMENT_H_
