// Training that continues in the same process when other workers of the job are replaced.
//
//   class Training : public cadre::InPlaceState { ... };   // model, optimizer, sample cursor
//   Training training;
//   Status status = cadre::TrainInPlace(*worker, training, {},
//       [&](cadre::Worker& worker, cadre::Communicator& communicator) {
//         return training.Run(worker, communicator);       // from its position, to the end
//       });
//
// If the job recovers in place (restart.in_place, --in-place) and a worker is lost, Run() returns
// with an error, the surviving workers get their places in the next generation, and all of them get
// the state of one that is furthest ahead; then Run() is called again, perhaps with another rank.
// Everything that Run() builds over its communicator, such as a DataParallel, must be destroyed
// before it returns. In any other job Run() is called once. RANK and similar environment variables
// keep their first values: use worker.place().
#ifndef CADRE_IN_PLACE_H_
#define CADRE_IN_PLACE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre {

// The state that a worker must be given when it joins later. Used by one thread.
class InPlaceState {
 public:
  virtual ~InPlaceState() = default;

  // Grows with each change that all ranks make alike, such as an optimizer's step; two ranks with
  // equal positions have equal states. Negative: there is no state yet.
  virtual int64_t position() const = 0;
  virtual Result<std::string> Save() const = 0;
  virtual Status Load(std::string_view bytes) = 0;
};

struct InPlaceOptions {
  CommunicatorOptions communicator;
  // Limits the wait for the next generation and the exchange of the state.
  std::chrono::nanoseconds rejoin_timeout = std::chrono::minutes(10);
};

// Called by all ranks; returns the status of the last call of `train`. An error is this worker's
// own if it is not caused by another worker's end (ABORTED, UNAVAILABLE, DEADLINE_EXCEEDED,
// CANCELLED), or if the generation continues: it is returned, and the process should exit.
Status TrainInPlace(Worker& worker, InPlaceState& state, const InPlaceOptions& options,
                    const std::function<Status(Worker&, Communicator&)>& train);

// Collective: ranks that are behind get the state of the lowest rank that is furthest ahead.
Status ShareState(Communicator& communicator, InPlaceState& state,
                  std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_IN_PLACE_H_
