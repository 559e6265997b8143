// The types that the pointers of cadre.h point to.
#ifndef CADRE_WORKER_RUNTIME_C_HANDLES_H_
#define CADRE_WORKER_RUNTIME_C_HANDLES_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/work.h"
#include "cadre/worker.h"

// The names are global, because C has no namespaces.
struct cadre_worker {
  std::unique_ptr<cadre::Worker> worker;
};

struct cadre_communicator {
  std::unique_ptr<cadre::Communicator> communicator;
};

struct cadre_memory {
  std::unique_ptr<cadre::MemoryCheckpoint> memory;
};

struct cadre_work {
  std::shared_ptr<cadre::Work> work;
};

#endif  // CADRE_WORKER_RUNTIME_C_HANDLES_H_
