// Scenarios of the core as text: lines with events, each followed by what the core does. Pure; for
// tests.
//
//   # a comment, kept as it is
//   > spec nodes=2 restarts=1
//   > join a slots=2
//       record NodeAdmitted a
//       a: Welcome lease=10s
//
// Events:
//   lease DURATION | grace DURATION         of the server; before anything else
//   spec [nodes=2..4] [restarts=N] [settle=D] [join=D] [start=D] [stop=D] [total=D] [backoff=D..D]
//        [window=D] [unit=N] [scale_up=immediately|never] [on=CRASH,...] [command=WORD] [job=NAME]
//        [in_place=yes]
//   join NODE [slots=N] [port=N] [rank=N] [expect=a,b] [incarnation=N] [adopt=D]
//        [python=VERSION] [torch=VERSION]   on a new stream
//   up NODE [LOCAL_RANK] [kept=yes]   its worker runs, `kept` from the generation before; all
//                                   of them without a number
//   gave_up NODE LOCAL_RANK REASON  its worker waits for the next generation
//   exit NODE LOCAL_RANK [code=N] [signal=N] [errno=N] [cause=NAME] [late=yes]
//                                   [lost_peer=yes]   its last lines say so
//                                   [error_file=SECONDS]   when it failed, by its error file
//                                   [in_vain=yes]     or that its wait for one had a timeout
//   done NODE                       all its workers succeed
//   at NODE STEP [max=STEP] [slowest=LOCAL_RANK] [speed=N] [loss=N] [anew=yes]   progress of its
//                                   workers, which restart their step count in each generation
//   hang NODE STATE[:PHASE:STEP]... its first worker hangs; and where each worker is
//   still NODE STATE[:PHASE:STEP]...  no worker has reached its timeout, but none advances
//   where NODE STATE[:PHASE:STEP]... the answer to Inspect; STATE:absent for a worker that was
//                                   restarted and cannot rejoin yet, STATE:own for a Python worker
//                                   in its own code, STATE:in for one in a collective
//   stopped NODE [port=N]           no worker is left
//   leave NODE [PREEMPTED] | close NODE | cancel NODE SIGNAL [AT_ONCE] | user_cancel REASON
//   silence NODE | wake NODE        during `wait` every other node renews its lease
//   wait DURATION                   with every core step that is due meanwhile
//   stall DURATION                  the server is suspended: no step, and nothing is read
//   store NODE RANK OPERATION... [wait=D] [generation=N] [id=N]
//   call NUMBER RANK OPERATION...   the same outside any stream;  drop NUMBER
//   OPERATION: set K V | get K | add K N | cas K OLD NEW | delete K | barrier NAME [size=N]
//              | publish NAME ID | get_id NAME
//   restart_server                  from its records; all streams are gone
//   disk fails | disk works         while it fails the host holds the core's messages
//   explain
#ifndef CADRE_RENDEZVOUS_TESTING_SCRIPT_H_
#define CADRE_RENDEZVOUS_TESTING_SCRIPT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// Returns the scenario with what the core really does after each event. INVALID_ARGUMENT names the
// line that cannot be parsed; INTERNAL the line after which an invariant of the core is broken.
absl::StatusOr<std::string> PlayScript(absl::string_view script);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_SCRIPT_H_
