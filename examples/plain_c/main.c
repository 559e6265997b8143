// Fits a line to points, on all workers of a job.
#include <cadre.h>
#include <stdio.h>

enum { kPoints = 1000, kEpochs = 30, kTimeoutMs = 60000 };

// The sum over all ranks, in place; the values are the caller's again when it returns.
static cadre_status SumOverRanks(cadre_communicator* all, double* values, size_t count) {
  cadre_work* work = NULL;
  cadre_status status = cadre_all_reduce(all, values, count, CADRE_FLOAT64, CADRE_SUM, &work);
  if (status == CADRE_OK) status = cadre_work_wait_or_abort(work, all, kTimeoutMs);
  cadre_work_free(work);
  return status;
}

static cadre_status Train(cadre_worker* worker, cadre_communicator* all) {
  const int rank = cadre_worker_rank(worker), world_size = cadre_worker_world_size(worker);
  double slope = 0, intercept = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    double sums[3] = {0, 0, 0};  // the gradient of slope and intercept, and the loss
    for (int i = rank; i < kPoints; i += world_size) {  // this rank's share
      const double x = 2.0 * i / (kPoints - 1) - 1, error = slope * x + intercept - (3 * x + 2);
      sums[0] += error * x / kPoints;
      sums[1] += error / kPoints;
      sums[2] += error * error / kPoints;
    }
    const cadre_status status = SumOverRanks(all, sums, 3);
    if (status != CADRE_OK) return status;
    slope -= sums[0];
    intercept -= sums[1];
    if (rank == 0) printf("epoch %d: loss %.6f\n", epoch, sums[2]);
  }
  printf("rank %d of %d: y = %.2f x + %.2f\n", rank, world_size, slope, intercept);
  return CADRE_OK;
}

int main(void) {
  cadre_worker* worker = NULL;
  cadre_communicator* all = NULL;
  cadre_status status = cadre_worker_connect(&worker);
  if (status == CADRE_OK) status = cadre_communicator_connect(worker, "world", kTimeoutMs, &all);
  if (status == CADRE_OK) status = Train(worker, all);
  if (status != CADRE_OK) {
    fprintf(stderr, "plain_c: %s: %s\n", cadre_status_name(status), cadre_last_error());
  }
  cadre_communicator_free(all);
  cadre_worker_free(worker);
  return status == CADRE_OK ? 0 : 1;
}
