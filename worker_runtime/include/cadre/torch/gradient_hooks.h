// Moved to cadre/torch/data_parallel.h; this header goes in 0.5.
#ifndef CADRE_TORCH_GRADIENT_HOOKS_H_
#define CADRE_TORCH_GRADIENT_HOOKS_H_

#include "cadre/torch/data_parallel.h"

#endif  // CADRE_TORCH_GRADIENT_HOOKS_H_
