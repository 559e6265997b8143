#include "bench/training/engine.h"

namespace cadre::bench {

std::unique_ptr<Engine> MakeC10dEngine(Worker&, std::shared_ptr<Model>, const std::string&, bool) {
  return nullptr;
}

}  // namespace cadre::bench
