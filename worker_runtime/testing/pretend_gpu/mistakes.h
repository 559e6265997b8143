// What a program did wrong with the pretend GPU. A real one leaves it undefined: it may work, hang
// or corrupt memory. Thread safe.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MISTAKES_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MISTAKES_H_

#include <string>

namespace cadre::pretend_gpu {

// Prints it; from the first one on every call of CUDA's fails with its text, as after an error of
// a real device.
void ReportMistake(const std::string& text);

// The first; empty: there was none.
std::string FirstMistake();
bool HasMistake();

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_MISTAKES_H_
