// The runtime for C, and for every language that calls C: who this process is, what it shares with
// the other workers of its generation, and collectives between all of them over plain memory. The
// C++ headers in cadre/ have more: docs/training_in_cpp.md.
//
//   cadre_worker* worker = NULL;
//   cadre_status status = cadre_worker_connect(&worker);
//   if (status != CADRE_OK) {
//     fprintf(stderr, "%s: %s\n", cadre_status_name(status), cadre_last_error());
//   }
//
// Errors. A call returns CADRE_OK or what went wrong, and cadre_last_error() says it in words. A
// null pointer where one is needed, a number that names no type or operation, and a negative
// timeout are CADRE_INVALID_ARGUMENT; CADRE_RESOURCE_EXHAUSTED is also said where there is no
// memory. After an error an object that was asked for is NULL; all else is as it was, where nothing
// other is said.
//
// Threads. Every function may be called on any thread, and on several at the same time with the
// same object, but for those that say otherwise: cadre_checkpoint_wanted and the cadre_*_free. No
// thread may be cancelled (pthread_cancel) inside a call.
//
// Time. Every timeout is in milliseconds. 0 looks once; one of more than a year counts as a year,
// and one of more than an hour that a store or a worker's barrier is given as an hour.
//
// Text. What is given is copied. What is returned stays as long as is said there.
#ifndef CADRE_C_API_H_
#define CADRE_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// One of the numbers below, which are those of gRPC. An int, as all constants here are: it is the
// same for every compiler, and a later library may return more of them.
typedef int cadre_status;
enum {
  CADRE_OK = 0,
  CADRE_CANCELLED = 1,
  CADRE_UNKNOWN = 2,
  CADRE_INVALID_ARGUMENT = 3,
  CADRE_DEADLINE_EXCEEDED = 4,
  CADRE_NOT_FOUND = 5,
  CADRE_ALREADY_EXISTS = 6,
  CADRE_PERMISSION_DENIED = 7,
  CADRE_RESOURCE_EXHAUSTED = 8,
  CADRE_FAILED_PRECONDITION = 9,
  CADRE_ABORTED = 10,
  CADRE_OUT_OF_RANGE = 11,
  CADRE_UNIMPLEMENTED = 12,
  CADRE_INTERNAL = 13,
  CADRE_UNAVAILABLE = 14,
  CADRE_DATA_LOSS = 15,
  CADRE_UNAUTHENTICATED = 16
};

// "ABORTED"; "UNKNOWN" for a number that is none. Stays for good.
const char* cadre_status_name(cadre_status status);

// What the last call on this thread that failed said; "" before the first. Calls that succeed leave
// it as it is, and so do the cadre_*_free functions: an error can be reported after cleaning up.
// Stays until the next call on this thread that fails. What a collective failed with is said on the
// thread that waits for it.
const char* cadre_last_error(void);

// "0.3.0". Stays for good.
const char* cadre_version(void);

// Exit statuses with which a worker tells its launcher more than that it failed.
enum {
  // Never start me again: the job ends.
  CADRE_EXIT_NEVER_RESTART = 93,
  // I was asked for a checkpoint (cadre_checkpoint_wanted) and have saved it.
  CADRE_EXIT_FOR_NEXT_GENERATION = 94
};

// ---- Worker: this process as one of its generation.

typedef struct cadre_worker cadre_worker;

// By what the environment says of who started this process: Cadre's agent, torchrun, mpirun, srun,
// or whoever set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (docs/training_in_cpp.md). One that
// was started to stand by waits here until it gets a place; without an agent all wait for all
// ranks, five minutes at most. CADRE_FAILED_PRECONDITION: nobody started it as a worker, or
// something is missing. CADRE_INVALID_ARGUMENT: variables contradict each other.
cadre_status cadre_worker_connect(cadre_worker** worker);
// For a program that knows its rank from elsewhere, whatever the environment says. `address`:
// "HOST:PORT" at which rank 0 listens for the others, the same for all, which nothing else uses.
// Waits until all ranks are there.
cadre_status cadre_worker_connect_at(int rank, int world_size, const char* address,
                                     int64_t timeout_ms, cadre_worker** worker);
// NULL does nothing. Communicators stay. No other call may use the worker then, or later.
void cadre_worker_free(cadre_worker* worker);

// Where it stands, which never changes; -1 for a null worker.
int cadre_worker_rank(const cadre_worker* worker);
int cadre_worker_world_size(const cadre_worker* worker);
int cadre_worker_local_rank(const cadre_worker* worker);
int cadre_worker_node_rank(const cadre_worker* worker);
int cadre_worker_restart_count(const cadre_worker* worker);
int64_t cadre_worker_generation(const cadre_worker* worker);
// The job's name, which stays as long as the worker; "" for a null worker.
const char* cadre_worker_job(const cadre_worker* worker);

// Waits until all ranks of the world have called it as often with that name.
cadre_status cadre_worker_barrier(cadre_worker* worker, const char* name, int64_t timeout_ms);

// Tells the launcher how far this worker is. Never waits; fails only for a null worker.
cadre_status cadre_worker_report_progress(cadre_worker* worker, int64_t step,
                                          double samples_per_second, double loss);

// *wanted: 1 where nodes that came later wait for the workers to save and to end with
// CADRE_EXIT_FOR_NEXT_GENERATION, else 0. Called by all ranks, which get the same answer; one call
// at a time on each, or one is taken for another.
cadre_status cadre_checkpoint_wanted(cadre_worker* worker, int64_t timeout_ms, int* wanted);

// ---- Store: keys and values that the workers of a generation share, and that end with it.
//
// A key has 1 to 256 bytes of UTF-8 and ends with a NUL; a value is bytes, CADRE_MAX_VALUE_BYTES at
// most, and may be NULL where it has none. Calls without a timeout wait for the store's answer, a
// minute at most. Any may fail with CADRE_ABORTED (the generation has moved on: exit, and Cadre
// starts the next one), CADRE_UNAVAILABLE (the store cannot be reached) or CADRE_RESOURCE_EXHAUSTED
// (it is full).

enum { CADRE_MAX_VALUE_BYTES = 65536 };

cadre_status cadre_store_set(cadre_worker* worker, const char* key, const void* value,
                             size_t value_size);

// Waits until the key is there, and copies its value to `value`, which has room for `capacity`
// bytes; a NUL follows where there is room for that too, as CADRE_MAX_VALUE_BYTES + 1 always have.
// *value_size: the value's bytes, without that NUL. CADRE_OUT_OF_RANGE: it has more than
// `capacity`; *value_size then says how many, and nothing was copied. CADRE_NOT_FOUND: the key is
// not there, and was not to be waited for.
cadre_status cadre_store_get(cadre_worker* worker, const char* key, int64_t timeout_ms, void* value,
                             size_t capacity, size_t* value_size);

// *sum: what the key holds afterwards; a null `sum` is not written to. A key that is not there
// counts as 0. CADRE_FAILED_PRECONDITION: it holds no number.
cadre_status cadre_store_add(cadre_worker* worker, const char* key, int64_t delta, int64_t* sum);

// Sets the key to `desired` if it holds `expected`; no bytes are expected of a key that is not
// there. CADRE_FAILED_PRECONDITION: it holds something else.
cadre_status cadre_store_compare_and_set(cadre_worker* worker, const char* key,
                                         const void* expected, size_t expected_size,
                                         const void* desired, size_t desired_size);

// A key that is not there is deleted already.
cadre_status cadre_store_delete(cadre_worker* worker, const char* key);

// ---- Memory: a training's state in the memory of its node, where it outlives the workers
// (cadre/memory_checkpoint.h). One call at a time on each.

typedef struct cadre_memory cadre_memory;

// Without these each rank keeps its own state, and a partner on the next node has a copy.
enum {
  // All ranks have the same state, as in data parallelism: one copy is kept on each node.
  CADRE_MEMORY_REPLICATED = 1,
  // No copy on a partner node: a node that is lost takes its ranks' states along.
  CADRE_MEMORY_NO_PARTNER = 2
};

// `flags`: of those above, or 0. `timeout_ms`: for cadre_memory_latest. The worker must outlive it.
// CADRE_FAILED_PRECONDITION: no agent of Cadre's keeps memory for this worker.
cadre_status cadre_memory_open(cadre_worker* worker, int flags, int64_t timeout_ms,
                               cadre_memory** memory);
// NULL does nothing. What was saved stays.
void cadre_memory_free(cadre_memory* memory);

// Also writes states to a directory that all nodes share, at most once every `every_ms`, and keeps
// the last two: cadre_memory_latest takes one where no memory has any. On all ranks, before the
// first write and latest. Says what is wrong where the directory cannot be written to; what goes
// wrong later, cadre_memory_wait_for_partner says.
cadre_status cadre_memory_spill(cadre_memory* memory, const char* directory, int64_t every_ms);

// Copies `count` parts, one behind the other; a state is there once it is committed, and what was
// committed before stays till then. Blocks while it copies: call it on a thread of its own while
// the parts do not change. CADRE_RESOURCE_EXHAUSTED: they do not fit into the node's memory.
cadre_status cadre_memory_write(cadre_memory* memory, const void* const* parts, const size_t* sizes,
                                size_t count);
cadre_status cadre_memory_commit(cadre_memory* memory, int64_t step);

// Until the partner node has what was committed last. Called before training goes on behind the
// next state: ranks that ran ahead might have no step in common when a node is lost. What went
// wrong with the copies is returned once, and training goes on without: CADRE_RESOURCE_EXHAUSTED
// where the partner has no room, CADRE_UNAVAILABLE or CADRE_DEADLINE_EXCEEDED where it is gone. So
// is a directory of cadre_memory_spill that could not be written to, with a text that names it.
cadre_status cadre_memory_wait_for_partner(cadre_memory* memory);

// Called by all ranks, which get the same step: the newest that all have or can be given. `*data`
// has `*size` bytes, to be copied before the next write. CADRE_NOT_FOUND: there is none.
cadre_status cadre_memory_latest(cadre_memory* memory, int64_t* step, const void** data,
                                 size_t* size);
// Called by all ranks: as what the newest state that any of them has was saved,
// CADRE_MEMORY_REPLICATED or 0, for who does not know. CADRE_NOT_FOUND: there is none.
cadre_status cadre_memory_saved_as(cadre_memory* memory, int* flags);

// ---- Communicator: collectives between all ranks of the world, or some of them.
//
// Functions that return a work only start the operation. All ranks make the same calls in the same
// order, but for send and receive, which concern two; what they were given belongs to the operation
// until it is done. Order between several threads is the caller's duty. An operation's own error
// comes from waiting for its work, and after it all later operations fail with the same: what the
// buffers hold is then unknown, and the program should exit. A call that itself returns an error
// has started nothing on this rank, while the other ranks may wait for it: exit then, too.
//
// `count` is in elements of `type`.

typedef struct cadre_communicator cadre_communicator;
typedef struct cadre_work cadre_work;

typedef int cadre_data_type;
enum {
  CADRE_FLOAT32 = 0,
  CADRE_FLOAT64 = 1,
  CADRE_FLOAT16 = 2,
  CADRE_INT32 = 3,
  CADRE_INT64 = 4,
  CADRE_UINT8 = 5,
  CADRE_BFLOAT16 = 6
};

typedef int cadre_reduce_op;
enum {
  CADRE_SUM = 0,
  CADRE_MAX = 1,
  CADRE_MIN = 2,
  // The sum over the number of ranks; of floating point elements only.
  CADRE_AVERAGE = 3
};

// All ranks call it the same number of times with the same names, and wait for each other.
// `timeout_ms` is for that, and later for each operation from its start. CADRE_DEADLINE_EXCEEDED
// and CADRE_UNAVAILABLE name a rank that did not come.
cadre_status cadre_communicator_connect(cadre_worker* worker, const char* name, int64_t timeout_ms,
                                        cadre_communicator** communicator);
// Likewise between these `count` ranks of the world only, which the communicator counts in the
// order given: a root, and the rank that an error names, is a number in `ranks`. All of them, and
// nobody else, call it with the same ranks and name.
cadre_status cadre_communicator_connect_group(cadre_worker* worker, const char* name,
                                              const int* ranks, size_t count, int64_t timeout_ms,
                                              cadre_communicator** communicator);
// Aborts what runs, and waits until no buffer is used any more. NULL does nothing. Works stay. No
// other call may use the communicator then, or later.
void cadre_communicator_free(cadre_communicator* communicator);
// Fails what runs and what waits, here and on the other ranks, with CADRE_ABORTED, within a second.
cadre_status cadre_communicator_abort(cadre_communicator* communicator);

// In place: every rank gets the reduction of all ranks' elements.
cadre_status cadre_all_reduce(cadre_communicator* communicator, void* data, size_t count,
                              cadre_data_type type, cadre_reduce_op op, cadre_work** work);
// As above, but only `root` gets it; the others' elements stay as they are.
cadre_status cadre_reduce(cadre_communicator* communicator, void* data, size_t count,
                          cadre_data_type type, cadre_reduce_op op, int root, cadre_work** work);
// Every rank gets root's elements.
cadre_status cadre_broadcast(cadre_communicator* communicator, void* data, size_t count,
                             cadre_data_type type, int root, cadre_work** work);
// `input` has `count` elements on each rank, `output` room for those of all, in rank order; `input`
// may lie in `output` at its own place.
cadre_status cadre_all_gather(cadre_communicator* communicator, const void* input, void* output,
                              size_t count, cadre_data_type type, cadre_work** work);
// Rank r gets the r-th part, `count` elements, of what an all-reduce of `input` would give. `input`
// has `count` elements for each rank; `output` may lie in it at its own place.
cadre_status cadre_reduce_scatter(cadre_communicator* communicator, const void* input, void* output,
                                  size_t count, cadre_data_type type, cadre_reduce_op op,
                                  cadre_work** work);
// Done when all ranks have called it.
cadre_status cadre_barrier(cadre_communicator* communicator, cadre_work** work);

// From one rank to another, beside the order of everything else. Messages between two ranks come in
// the order they were sent in; the next one having another type, count or tag than the receive is
// an error that says so. A send may last until it is received.
cadre_status cadre_send(cadre_communicator* communicator, const void* data, size_t count,
                        cadre_data_type type, int to, int tag, cadre_work** work);
cadre_status cadre_receive(cadre_communicator* communicator, void* data, size_t count,
                           cadre_data_type type, int from, int tag, cadre_work** work);

// ---- Work: an operation that was started.

// What the operation came to; CADRE_DEADLINE_EXCEEDED also where it is not done after that time,
// and goes on. Once it is done, every wait returns the same at once.
cadre_status cadre_work_wait(cadre_work* work, int64_t timeout_ms);
// For buffers that will not outlive the wait: where the operation fails or is late, aborts the
// communicator it was started on, and waits until the operation no longer uses them, which takes
// seconds at most. Returns what went wrong first.
cadre_status cadre_work_wait_or_abort(cadre_work* work, cadre_communicator* communicator,
                                      int64_t timeout_ms);
// 1: done, well or not; 0: not yet; -1: a null work.
int cadre_work_done(const cadre_work* work);
// Lets go of the work, not of the operation: one that is not done goes on with its buffers. NULL
// does nothing. No other call may use the work then, or later.
void cadre_work_free(cadre_work* work);

#ifdef __cplusplus
}
#endif

#endif  // CADRE_C_API_H_
