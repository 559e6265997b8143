// Moved to cadre/torch/fully_sharded.h; this header goes in 0.5.
#ifndef CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_
#define CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_

#include "cadre/torch/fully_sharded.h"

#endif  // CADRE_TORCH_FULLY_SHARDED_FULLY_SHARDED_UNITS_H_
