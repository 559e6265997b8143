// Compiles the header as C99 without extensions, and calls every function of it from C. It is
// included by its path in the checkout, because the compiler suppresses warnings in headers that it
// finds in system directories.
#include <stdio.h>
#include <string.h>

#include "worker_runtime/include/cadre.h"

static int failures = 0;

static void Expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "not so: %s\n", what);
  ++failures;
}
#define EXPECT(expression) Expect((expression), #expression)
#define EXPECT_INVALID(call) Expect((call) == CADRE_INVALID_ARGUMENT, #call)

static void TestWords(void) {
  EXPECT(strcmp(cadre_status_name(CADRE_OK), "OK") == 0);
  EXPECT(strcmp(cadre_last_error(), "") == 0);
  EXPECT(strlen(cadre_version()) > 0);
  EXPECT(CADRE_EXIT_NEVER_RESTART == 93 && CADRE_EXIT_FOR_NEXT_GENERATION == 94);
}

static void TestWorkerFromC(void) {
  cadre_worker* worker = NULL;
  int wanted = 0;
  EXPECT(cadre_worker_connect(&worker) == CADRE_FAILED_PRECONDITION);
  EXPECT(worker == NULL);
  EXPECT(strstr(cadre_last_error(), "cadre run") != NULL);
  EXPECT(cadre_worker_rank(worker) == -1);
  EXPECT(cadre_worker_world_size(worker) == -1);
  EXPECT(cadre_worker_local_rank(worker) == -1);
  EXPECT(cadre_worker_node_rank(worker) == -1);
  EXPECT(cadre_worker_restart_count(worker) == -1);
  EXPECT(cadre_worker_generation(worker) == -1);
  EXPECT(strcmp(cadre_worker_job(worker), "") == 0);
  EXPECT_INVALID(cadre_worker_barrier(worker, "all", 0));
  EXPECT_INVALID(cadre_worker_report_progress(worker, 1, 1.0, 1.0));
  EXPECT_INVALID(cadre_checkpoint_wanted(worker, 0, &wanted));
  cadre_worker_free(worker);
}

static void TestStoreFromC(void) {
  char value[8];
  size_t size = 0;
  int64_t sum = 0;
  EXPECT_INVALID(cadre_store_set(NULL, "k", "v", 1));
  EXPECT_INVALID(cadre_store_get(NULL, "k", 0, value, sizeof value, &size));
  EXPECT_INVALID(cadre_store_add(NULL, "k", 1, &sum));
  EXPECT_INVALID(cadre_store_compare_and_set(NULL, "k", "a", 1, "b", 1));
  EXPECT_INVALID(cadre_store_delete(NULL, "k"));
}

static void TestCommunicatorFromC(void) {
  cadre_communicator* all = NULL;
  cadre_work* work = NULL;
  float data[2] = {0, 0};
  EXPECT_INVALID(cadre_communicator_connect(NULL, "world", 0, &all));
  EXPECT_INVALID(cadre_communicator_abort(all));
  EXPECT_INVALID(cadre_all_reduce(all, data, 2, CADRE_FLOAT32, CADRE_AVERAGE, &work));
  EXPECT_INVALID(cadre_reduce(all, data, 2, CADRE_FLOAT32, CADRE_MIN, 0, &work));
  EXPECT_INVALID(cadre_broadcast(all, data, 2, CADRE_FLOAT32, 0, &work));
  EXPECT_INVALID(cadre_all_gather(all, data, data, 2, CADRE_FLOAT32, &work));
  EXPECT_INVALID(cadre_reduce_scatter(all, data, data, 2, CADRE_FLOAT32, CADRE_MAX, &work));
  EXPECT_INVALID(cadre_barrier(all, &work));
  EXPECT_INVALID(cadre_send(all, data, 2, CADRE_FLOAT32, 1, 0, &work));
  EXPECT_INVALID(cadre_receive(all, data, 2, CADRE_FLOAT32, 1, 0, &work));
  EXPECT_INVALID(cadre_work_wait(work, 0));
  EXPECT_INVALID(cadre_work_wait_or_abort(work, all, 0));
  EXPECT(cadre_work_done(work) == -1);
  cadre_work_free(work);
  cadre_communicator_free(all);
}

int main(void) {
  TestWords();
  TestWorkerFromC();
  TestStoreFromC();
  TestCommunicatorFromC();
  return failures == 0 ? 0 : 1;
}
