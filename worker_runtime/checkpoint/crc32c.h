// CRC-32C (Castagnoli), as in iSCSI and most storage systems. Pure.
#ifndef CADRE_WORKER_RUNTIME_CHECKPOINT_CRC32C_H_
#define CADRE_WORKER_RUNTIME_CHECKPOINT_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace cadre::checkpoint {

// Goes on from the checksum of what came before; 0 to begin with.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes);

}  // namespace cadre::checkpoint

#endif  // CADRE_WORKER_RUNTIME_CHECKPOINT_CRC32C_H_
