// The jobs of a simulated cluster's users, drawn at random. Pure.
#ifndef CADRE_TESTS_SIMULATION_CLUSTER_JOBS_H_
#define CADRE_TESTS_SIMULATION_CLUSTER_JOBS_H_

#include <cstdint>

#include "proto/spec.pb.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// Returns a job, or a batch job, for a cluster of so many machines. One of about `names` names is
// its name; some look like those that the server makes up.
v1::JobSpec DrawClusterJob(Random& random, int names, int machines);

// Lets the job wait for others sometimes: jobs up to the id `last`, or to be released; and keeps it
// off some machines.
void DrawQueueOptions(Random& random, uint64_t last, int machines, v1::JobSpec* spec);

// Returns a step of the batch job. It may ask for more than the job has.
v1::JobSpec DrawStep(Random& random, const v1::JobSpec& batch, int machines);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_CLUSTER_JOBS_H_
