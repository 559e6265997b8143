// Threads of libtorch's operators.
#ifndef CADRE_EXAMPLES_MNIST_CNN_THREADS_H_
#define CADRE_EXAMPLES_MNIST_CNN_THREADS_H_

namespace cadre::mnist {

// 0: one on each of several ranks, which share the cores; else all cores.
void SetThreads(int threads, int world_size);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_THREADS_H_
