// The runtime for C, and for every language that calls C: this process's place among the workers of
// its generation, the store that they share, and collectives between all of them on host memory.
// The C++ headers in cadre/ offer more: docs/training_in_cpp.md.
//
//   cadre_worker* worker = NULL;
//   cadre_status status = cadre_worker_connect(&worker);
//   if (status != CADRE_OK) {
//     fprintf(stderr, "%s: %s\n", cadre_status_name(status), cadre_last_error());
//   }
//
// Errors. A call returns CADRE_OK or an error code; cadre_last_error() returns its message.
// CADRE_INVALID_ARGUMENT: a required pointer is null, a number names no type or operation, or a
// timeout is negative. CADRE_RESOURCE_EXHAUSTED is also returned when memory runs out. After an
// error, an output object is NULL; everything else is unchanged unless documented otherwise.
//
// Threads. Every function may be called on any thread, and on several threads at once with the same
// object, except cadre_checkpoint_wanted and the cadre_*_free functions. No thread may be cancelled
// (pthread_cancel) inside a call.
//
// Time. Every timeout is in milliseconds. 0 checks once without waiting. Timeouts over a year count
// as a year, and over an hour as an hour for store calls and a worker's barrier.
//
// Text. Strings passed in are copied. How long a returned string stays valid is documented at each
// function.
#ifndef CADRE_C_API_H_
#define CADRE_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// One of the numbers below, which are those of gRPC. It is an int, like all constants here, so that
// its size is the same for every compiler and a later library may return more values.
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

// For example "ABORTED"; "UNKNOWN" for a number that is no status. The string is static.
const char* cadre_status_name(cadre_status status);

// The message of the last call that failed on this thread; "" before the first. Successful calls
// and the cadre_*_free functions leave it unchanged, so an error can be reported after cleaning up.
// Valid until the next call on this thread that fails. A failed collective sets the message of the
// thread that waits for it.
const char* cadre_last_error(void);

// For example "0.4.0". The string is static.
const char* cadre_version(void);

// Exit statuses that a worker uses to tell its launcher more than that it failed.
enum {
  // The job must end: the launcher does not restart this worker.
  CADRE_EXIT_NEVER_RESTART = 93,
  // The worker was asked for a checkpoint (cadre_checkpoint_wanted) and has saved it.
  CADRE_EXIT_FOR_NEXT_GENERATION = 94
};

// ---- Worker: this process as a member of its generation.

typedef struct cadre_worker cadre_worker;

// Connects as the environment describes: set by Cadre's agent, torchrun, mpirun, srun, or the user
// (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; docs/training_in_cpp.md). A process that was
// started as a standby waits here until it gets a place; without an agent all ranks wait for each
// other, five minutes at most. CADRE_FAILED_PRECONDITION: this process was not started as a worker,
// or a variable is missing. CADRE_INVALID_ARGUMENT: variables contradict each other.
cadre_status cadre_worker_connect(cadre_worker** worker);
// For a program that knows its rank from another source; the environment is ignored. `address` is
// the "HOST:PORT" at which rank 0 listens for the other ranks: the same on all ranks, and a port
// that nothing else uses. Waits until all ranks have connected.
cadre_status cadre_worker_connect_at(int rank, int world_size, const char* address,
                                     int64_t timeout_ms, cadre_worker** worker);
// NULL does nothing. Communicators remain usable. No other call may use the worker during or after
// this one.
void cadre_worker_free(cadre_worker* worker);

// The worker's place, which never changes; -1 for a null worker.
int cadre_worker_rank(const cadre_worker* worker);
int cadre_worker_world_size(const cadre_worker* worker);
int cadre_worker_local_rank(const cadre_worker* worker);
int cadre_worker_node_rank(const cadre_worker* worker);
int cadre_worker_restart_count(const cadre_worker* worker);
int64_t cadre_worker_generation(const cadre_worker* worker);
// The job's name, valid as long as the worker; "" for a null worker.
const char* cadre_worker_job(const cadre_worker* worker);

// Waits until all ranks of the world have called it the same number of times with that name.
cadre_status cadre_worker_barrier(cadre_worker* worker, const char* name, int64_t timeout_ms);

// Reports training progress to the launcher. Never blocks; fails only for a null worker.
cadre_status cadre_worker_report_progress(cadre_worker* worker, int64_t step,
                                          double samples_per_second, double loss);

// Sets *wanted to 1 if nodes that joined later wait for the workers to save and to exit with
// CADRE_EXIT_FOR_NEXT_GENERATION, else to 0. All ranks call it and get the same answer. Each rank
// makes one such call at a time, since overlapping calls could be matched with each other.
cadre_status cadre_checkpoint_wanted(cadre_worker* worker, int64_t timeout_ms, int* wanted);

// ---- Store: keys and values that the workers of a generation share, deleted when it ends.
//
// A key is a NUL-terminated string of 1 to 256 bytes of UTF-8. A value is at most
// CADRE_MAX_VALUE_BYTES bytes, and its pointer may be NULL if it is empty. Calls without a timeout
// wait at most a minute for the store's answer. Any call may fail with CADRE_ABORTED (the
// generation is over: exit, and Cadre starts the next one), CADRE_UNAVAILABLE (the store cannot be
// reached) or CADRE_RESOURCE_EXHAUSTED (the store is full).

enum { CADRE_MAX_VALUE_BYTES = 65536 };

cadre_status cadre_store_set(cadre_worker* worker, const char* key, const void* value,
                             size_t value_size);

// Waits until the key exists, and copies its value to `value`, which has room for `capacity` bytes.
// A NUL is appended if it fits, which it always does in CADRE_MAX_VALUE_BYTES + 1 bytes.
// *value_size is the value's size without that NUL. CADRE_OUT_OF_RANGE: the value is larger than
// `capacity`; *value_size is its size, and nothing was copied. CADRE_NOT_FOUND: the timeout is 0
// and the key does not exist.
cadre_status cadre_store_get(cadre_worker* worker, const char* key, int64_t timeout_ms, void* value,
                             size_t capacity, size_t* value_size);

// Adds `delta` and sets *sum, unless `sum` is null, to the new value. A missing key counts as 0.
// CADRE_FAILED_PRECONDITION: the key's value is not a number.
cadre_status cadre_store_add(cadre_worker* worker, const char* key, int64_t delta, int64_t* sum);

// Sets the key to `desired` if its value is `expected`; an empty `expected` matches a missing key.
// CADRE_FAILED_PRECONDITION: the key has another value.
cadre_status cadre_store_compare_and_set(cadre_worker* worker, const char* key,
                                         const void* expected, size_t expected_size,
                                         const void* desired, size_t desired_size);

// Deleting a missing key succeeds.
cadre_status cadre_store_delete(cadre_worker* worker, const char* key);

// ---- Memory: a training job's state in its node's memory, where it outlives the workers
// (cadre/memory_checkpoint.h). One call at a time on each.

typedef struct cadre_memory cadre_memory;

// With neither flag each rank keeps its own state, and a partner on the next node has a copy.
enum {
  // All ranks have the same state, as in data parallelism: each node keeps one copy.
  CADRE_MEMORY_REPLICATED = 1,
  // No copy on a partner node: when a node is lost, so are the states of its ranks.
  CADRE_MEMORY_NO_PARTNER = 2
};

// `flags` combines the values above, or is 0. `timeout_ms` applies to cadre_memory_latest. The
// worker must outlive the result. CADRE_FAILED_PRECONDITION: no Cadre agent provides memory for
// this worker.
cadre_status cadre_memory_open(cadre_worker* worker, int flags, int64_t timeout_ms,
                               cadre_memory** memory);
// NULL does nothing. Saved states are kept.
void cadre_memory_free(cadre_memory* memory);

// Also writes states to a directory that all nodes share, at most once every `every_ms`, and keeps
// the last two; cadre_memory_latest reads one when no node's memory has a state. All ranks call it
// before the first write and before cadre_memory_latest. Fails if the directory cannot be written
// to; later write errors are returned by cadre_memory_wait_for_partner.
cadre_status cadre_memory_spill(cadre_memory* memory, const char* directory, int64_t every_ms);

// Copies `count` parts one after the other. The state becomes visible when it is committed, and the
// state committed before is kept until then. Blocks while it copies: call it on a separate thread
// while the parts do not change. CADRE_RESOURCE_EXHAUSTED: the parts do not fit into the node's
// memory.
cadre_status cadre_memory_write(cadre_memory* memory, const void* const* parts, const size_t* sizes,
                                size_t count);
cadre_status cadre_memory_commit(cadre_memory* memory, int64_t step);

// Waits until the partner node has the last committed state. Call it before training continues past
// the next state; otherwise ranks that ran ahead might have no step in common when a node is lost.
// A failure of the copies is returned once, and training continues without them:
// CADRE_RESOURCE_EXHAUSTED if the partner has no room, CADRE_UNAVAILABLE or CADRE_DEADLINE_EXCEEDED
// if it is gone. A directory of cadre_memory_spill that could not be written to is also returned
// here, with a message that names it.
cadre_status cadre_memory_wait_for_partner(cadre_memory* memory);

// Called by all ranks, which get the same step: the newest that all of them have or can be given.
// `*data` points to `*size` bytes, which must be copied before the next write. CADRE_NOT_FOUND:
// there is no such state.
cadre_status cadre_memory_latest(cadre_memory* memory, int64_t* step, const void** data,
                                 size_t* size);
// Called by all ranks: sets *flags to how the newest state of any rank was saved,
// CADRE_MEMORY_REPLICATED or 0, for callers that do not know. CADRE_NOT_FOUND: there is no state.
cadre_status cadre_memory_saved_as(cadre_memory* memory, int* flags);

// ---- Communicator: collectives between all ranks of the world, or a subset.
//
// Functions that return a work only start the operation. All ranks make the same calls in the same
// order, except send and receive, which involve two ranks. Buffers belong to the operation until it
// is done. Ordering calls between several threads is the caller's responsibility. An operation's
// own error is returned by waiting for its work, and all later operations fail with the same error:
// the buffers' content is then undefined, and the program should exit. A call that itself returns
// an error has started nothing on this rank, while the other ranks may wait for it, so the program
// should exit then, too.
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
  // The sum divided by the number of ranks; floating point types only.
  CADRE_AVERAGE = 3
};

// All ranks call it the same number of times with the same names, and wait for each other.
// `timeout_ms` limits that wait, and later each operation, counted from its start.
// CADRE_DEADLINE_EXCEEDED and CADRE_UNAVAILABLE name a rank that did not connect.
cadre_status cadre_communicator_connect(cadre_worker* worker, const char* name, int64_t timeout_ms,
                                        cadre_communicator** communicator);
// Likewise for these `count` ranks of the world only. The communicator numbers them in the order
// given: a root, and the rank that an error names, is an index into `ranks`. Exactly these ranks
// call it, with the same ranks and name.
cadre_status cadre_communicator_connect_group(cadre_worker* worker, const char* name,
                                              const int* ranks, size_t count, int64_t timeout_ms,
                                              cadre_communicator** communicator);
// Aborts running operations and waits until no buffer is in use. NULL does nothing. Works remain
// valid. No other call may use the communicator during or after this one.
void cadre_communicator_free(cadre_communicator* communicator);
// Fails running and queued operations, on this rank and the others, with CADRE_ABORTED within a
// second.
cadre_status cadre_communicator_abort(cadre_communicator* communicator);

// Every rank's buffer is replaced by the reduction of all ranks' elements.
cadre_status cadre_all_reduce(cadre_communicator* communicator, void* data, size_t count,
                              cadre_data_type type, cadre_reduce_op op, cadre_work** work);
// As above, but only `root` gets the result; the other ranks' elements are unchanged.
cadre_status cadre_reduce(cadre_communicator* communicator, void* data, size_t count,
                          cadre_data_type type, cadre_reduce_op op, int root, cadre_work** work);
// Every rank gets root's elements.
cadre_status cadre_broadcast(cadre_communicator* communicator, void* data, size_t count,
                             cadre_data_type type, int root, cadre_work** work);
// `input` has `count` elements on each rank; `output` has room for those of all ranks, in rank
// order. `input` may be this rank's own part of `output`.
cadre_status cadre_all_gather(cadre_communicator* communicator, const void* input, void* output,
                              size_t count, cadre_data_type type, cadre_work** work);
// Rank r gets the r-th part, `count` elements, of the all-reduced `input`, which has `count`
// elements for each rank. `output` may be this rank's own part of `input`.
cadre_status cadre_reduce_scatter(cadre_communicator* communicator, const void* input, void* output,
                                  size_t count, cadre_data_type type, cadre_reduce_op op,
                                  cadre_work** work);
// Done when all ranks have called it.
cadre_status cadre_barrier(cadre_communicator* communicator, cadre_work** work);

// Point-to-point messages, independent of the order of other operations. Messages between two ranks
// arrive in the order in which they were sent; if the next one's type, count or tag differs from
// the receive's, the receive fails and describes both. A send may stay pending until it is
// received.
cadre_status cadre_send(cadre_communicator* communicator, const void* data, size_t count,
                        cadre_data_type type, int to, int tag, cadre_work** work);
cadre_status cadre_receive(cadre_communicator* communicator, void* data, size_t count,
                           cadre_data_type type, int from, int tag, cadre_work** work);

// ---- Work: an operation that has been started.

// Returns the operation's status, or CADRE_DEADLINE_EXCEEDED if it is still running after that
// time, in which case it continues. Once it is done, every wait returns its status at once.
cadre_status cadre_work_wait(cadre_work* work, int64_t timeout_ms);
// For buffers that will not outlive the wait: if the operation fails or is late, aborts the
// communicator it was started on, and waits, seconds at most, until the operation no longer uses
// its buffers. Returns the first error.
cadre_status cadre_work_wait_or_abort(cadre_work* work, cadre_communicator* communicator,
                                      int64_t timeout_ms);
// 1: done, successfully or not; 0: still running; -1: a null work.
int cadre_work_done(const cadre_work* work);
// Frees the work, not the operation: one that is still running continues to use its buffers. NULL
// does nothing. No other call may use the work during or after this one.
void cadre_work_free(cadre_work* work);

#ifdef __cplusplus
}
#endif

#endif  // CADRE_C_API_H_
