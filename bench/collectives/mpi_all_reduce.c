/* Open MPI's all-reduce, measured as schedule.h measures. Prints "BYTES MICROSECONDS" a line. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int Compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const char* next = argc > 1 ? argv[1] : "";
  unsigned long bytes;
  int warm_up, rounds, iterations, length;
  while (sscanf(next, "%lu:%d:%d:%d%n", &bytes, &warm_up, &rounds, &iterations, &length) == 4) {
    next += length + (next[length] == ',');
    const int count = (int)(bytes / sizeof(float));
    float* data = calloc(count, sizeof(float));
    double* times = calloc(rounds, sizeof(double));
    for (int i = 0; i < count; ++i) data[i] = 0;
    for (int i = 0; i < warm_up; ++i) {
      MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    for (int round = 0; round < rounds; ++round) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      for (int i = 0; i < iterations; ++i) {
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      }
      times[round] = (MPI_Wtime() - start) * 1e6 / iterations;
    }
    qsort(times, rounds, sizeof(double), Compare);
    if (rank == 0) printf("%lu %.3f\n", bytes, times[rounds / 2]);
    free(data);
    free(times);
  }
  MPI_Finalize();
  return 0;
}
