// Moved to cadre/torch/device_stream.h; this header goes in 0.5.
#ifndef CADRE_TORCH_DEVICE_LINKS_H_
#define CADRE_TORCH_DEVICE_LINKS_H_

#include "cadre/torch/device_stream.h"

#endif  // CADRE_TORCH_DEVICE_LINKS_H_
