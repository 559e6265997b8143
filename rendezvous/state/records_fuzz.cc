// Fuzzes records as a log keeps them, in a row of SQLite or in pieces of etcd: any records can be
// applied, and so can the snapshot of the resulting state.
#include "proto/record.pb.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/state/records.h"
#include "rendezvous/state/state.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cadre::state::State;
  cadre::v1::RecordBatch batch;
  if (!batch.ParseFromArray(data, static_cast<int>(size))) return 0;
  State state;
  for (const cadre::v1::Record& record : batch.records()) cadre::state::Apply(record, &state);
  State again;
  for (const cadre::v1::Record& record : cadre::state::SnapshotOf(state)) {
    cadre::state::Apply(record, &again);
  }
  return 0;
}
