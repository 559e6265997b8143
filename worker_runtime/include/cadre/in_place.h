// Training that goes on in its process when other workers of the job are replaced.
//
//   class Training : public cadre::InPlaceState { ... };   // model, optimizer, sample cursor
//   Training training;
//   Status status = cadre::TrainInPlace(*worker, training, {},
//       [&](cadre::Worker& worker, cadre::Communicator& communicator) {
//         return training.Run(worker, communicator);       // from where it is, to the end
//       });
//
// Where the job recovers in place (restart.in_place, --in-place) and a worker is lost, Run()
// returns with an error, the others get their places in the next generation, and all get the state
// of one that is furthest; then Run() is called again, with another rank perhaps. All that Run()
// builds over its communicator, such as a DataParallel, belongs to that call and must be gone when
// it returns. In any other job it is called once. RANK and the like in the environment stay what
// they were at the start: worker.place() counts.
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

// The state that a worker which comes later must be given. One thread.
class InPlaceState {
 public:
  virtual ~InPlaceState() = default;

  // Grows with each change that all ranks make alike, such as an optimizer's step; equal on two
  // ranks: so is their state. Negative: nothing is there yet.
  virtual int64_t position() const = 0;
  virtual Result<std::string> Save() const = 0;
  virtual Status Load(std::string_view bytes) = 0;
};

struct InPlaceOptions {
  CommunicatorOptions communicator;
  // For the next generation to form, and for the exchange of the state.
  std::chrono::nanoseconds rejoin_timeout = std::chrono::minutes(10);
};

// Trains on all ranks alike; the status of the last call of `train`. An error that is not some
// other worker's end (ABORTED, UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED), or that comes while the
// generation goes on, is this worker's own: it is returned, and the process should end.
Status TrainInPlace(Worker& worker, InPlaceState& state, const InPlaceOptions& options,
                    const std::function<Status(Worker&, Communicator&)>& train);

// Collective: gives the ranks that are behind the state of the first that is furthest.
Status ShareState(Communicator& communicator, InPlaceState& state,
                  std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_IN_PLACE_H_
