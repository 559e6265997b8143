// The number of threads of libtorch's operators.
// Implemented in train.cc.
#ifndef CADRE_EXAMPLES_MNIST_CNN_THREADS_H_
#define CADRE_EXAMPLES_MNIST_CNN_THREADS_H_

namespace cadre::mnist {

// With 0, each of several ranks uses one thread, because they share the cores; a single rank uses
// all cores.
void SetThreads(int threads, int world_size);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_THREADS_H_
