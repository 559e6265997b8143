// Which machine this process is on, as far as shared memory goes.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_MACHINE_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_MACHINE_H_

#include <string>

namespace cadre::environment {

// The same for processes that see each other's process ids and loopback, and for no others: two
// containers of one machine are two. One line of printable characters.
std::string ThisMachine();

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_MACHINE_H_
