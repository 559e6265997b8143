// Whether ranks encrypt what they send to other nodes.
#ifndef CADRE_WORKER_RUNTIME_WIRE_ENCRYPTION_H_
#define CADRE_WORKER_RUNTIME_WIRE_ENCRYPTION_H_

#include "cadre/result.h"

namespace cadre::wire {

// `cadre run --encrypt` sets it to 1 for all its workers; who starts ranks otherwise sets it too.
inline constexpr char kEncryptVariable[] = "CADRE_ENCRYPT";

// INVALID_ARGUMENT: the variable says neither 1 nor 0, which is as if it were not set.
Result<bool> WantsEncryption();

}  // namespace cadre::wire

#endif  // CADRE_WORKER_RUNTIME_WIRE_ENCRYPTION_H_
