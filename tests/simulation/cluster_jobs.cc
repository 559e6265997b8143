#include "tests/simulation/cluster_jobs.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace cadre::simulation {
namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

std::string DrawName(Random& random, int names) {
  std::string name = absl::StrCat("j", random.Below(names));
  if (random.Percent(10)) absl::StrAppend(&name, "-", random.Between(1, 2 * names));
  if (random.Percent(10)) absl::StrAppend(&name, "-s", random.Below(3));
  return name;
}

// Sets what every job and every step has.
void DrawCommon(Random& random, v1::JobSpec* spec) {
  spec->mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec->mutable_timeouts()->mutable_stop_grace()->set_seconds(random.Between(1, 5));
  spec->mutable_rendezvous()->mutable_join_timeout()->set_seconds(300);
}

}  // namespace

v1::JobSpec DrawClusterJob(Random& random, int names, int machines) {
  v1::JobSpec spec;
  spec.set_name(DrawName(random, names));
  spec.add_command("./train");
  DrawCommon(random, &spec);
  const bool batch = random.Percent(40);
  if (batch) spec.mutable_batch()->set_script("#!/bin/sh\n");
  spec.mutable_nodes()->set_min(random.Between(1, machines));
  spec.mutable_nodes()->set_max(spec.nodes().min());
  if (random.Percent(40)) {
    spec.mutable_nodes()->set_max(random.Between(spec.nodes().min(), machines));
    if (!batch) spec.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
  }
  spec.mutable_workers_per_node()->set_count(random.Between(1, batch ? 4 : 2));
  if (random.Percent(batch ? 60 : 40)) spec.mutable_resources()->set_gpus_per_worker(1);
  if (random.Percent(20)) spec.mutable_resources()->set_cpus_per_worker(2);
  if (random.Percent(50)) {
    spec.mutable_resources()->set_memory_per_worker(random.Between(1, 5) * kGib);
  }
  if (batch && random.Percent(20)) {
    spec.mutable_timeouts()->mutable_total()->set_seconds(random.Between(20, 200));
  }
  spec.mutable_restart()->set_max(random.Between(0, 5));
  spec.set_priority(random.Between(0, 2));
  return spec;
}

void DrawQueueOptions(Random& random, uint64_t last, int machines, v1::JobSpec* spec) {
  v1::QueueOptions* queue = spec->mutable_queue();
  for (int i = random.Percent(30) ? random.Between(1, 2) : 0; i > 0 && last > 0; --i) {
    v1::Dependency* dependency = queue->add_dependencies();
    const v1::Dependency::Kind kinds[] = {v1::Dependency::AFTER, v1::Dependency::AFTER_ANY,
                                          v1::Dependency::AFTER_OK, v1::Dependency::AFTER_NOT_OK};
    dependency->set_kind(kinds[random.Below(4)]);
    dependency->set_job(static_cast<uint64_t>(random.Between(1, static_cast<int>(last))));
  }
  queue->set_any_dependency(random.Percent(30));
  queue->set_held(random.Percent(10));
  if (random.Percent(10)) {
    spec->mutable_placement()->add_exclude(absl::StrCat("n", random.Below(machines)));
  }
  spec->mutable_restart()->set_requeue(random.Percent(90));
}

v1::JobSpec DrawStep(Random& random, const v1::JobSpec& batch, int machines) {
  v1::JobSpec spec;
  spec.set_name("step");
  spec.add_command("./train");
  DrawCommon(random, &spec);
  const int most = static_cast<int>(batch.nodes().max());
  spec.mutable_nodes()->set_min(random.Between(1, random.Percent(5) ? most + 1 : most));
  spec.mutable_nodes()->set_max(spec.nodes().min());
  // Small ones are together on a node, and large ones find no room.
  const int tasks = random.Percent(50) ? 1 : static_cast<int>(batch.workers_per_node().count());
  spec.mutable_workers_per_node()->set_count(random.Between(1, random.Percent(95) ? tasks : 6));
  if (random.Percent(batch.resources().gpus_per_worker() > 0 ? 80 : 5)) {
    spec.mutable_resources()->set_gpus_per_worker(1);
  }
  const uint64_t memory = batch.resources().memory_per_worker();
  if (random.Percent(memory > 0 ? 60 : 20)) {
    spec.mutable_resources()->set_memory_per_worker(
        random.Between(1, std::max<int>(memory / kGib, 2)) * kGib);
  }
  v1::SlurmStep* step = spec.mutable_slurm_step();
  step->set_overlap(random.Percent(30));
  const bool asks = random.Percent(20);
  for (int i = 0; i < machines; ++i) {
    if (asks && random.Percent(70)) step->add_nodes(absl::StrCat("n", i));
  }
  spec.mutable_restart()->set_max(random.Between(0, 2));
  return spec;
}

}  // namespace cadre::simulation
