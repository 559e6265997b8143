// A worker that prints its place and then does what its flags say. It starts in under a
// millisecond, so that tests and benchmarks measure the launcher.
//
//   probe [--exit N] [--kill SIGNAL] [--rank R] [--generation G] [--ignore-term] [--setsid-child]
//
// It prints `probe rank=0 local=0 world=2 node=0 generation=1 restarts=0 pid=7 at_ns=...` (at_ns is
// on the machine's monotonic clock), then exits or is killed if --rank and --generation (where
// given) match, and otherwise waits for a signal.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace {

const char* Env(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value == nullptr ? otherwise : value;
}

struct Orders {
  int exit_code = -1;
  int signal = 0;
  const char* rank = nullptr;
  const char* generation = nullptr;
  bool ignore_term = false;
  bool setsid_child = false;
};

bool Parse(int argc, char** argv, Orders& orders) {
  for (int i = 1; i < argc; ++i) {
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--ignore-term") == 0) {
      orders.ignore_term = true;
      continue;
    }
    if (strcmp(argv[i], "--setsid-child") == 0) {
      orders.setsid_child = true;
      continue;
    }
    if (strcmp(argv[i], "--exit") == 0) {
      orders.exit_code = atoi(value);
    } else if (strcmp(argv[i], "--kill") == 0) {
      orders.signal = atoi(value);
    } else if (strcmp(argv[i], "--rank") == 0) {
      orders.rank = value;
    } else if (strcmp(argv[i], "--generation") == 0) {
      orders.generation = value;
    } else {
      fprintf(stderr, "probe: unknown option %s\n", argv[i]);
      return false;
    }
    ++i;
  }
  return true;
}

// Starts a grandchild in its own session, which no signal to the process group reaches.
void LeaveGrandchild() {
  if (fork() != 0) return;
  setsid();
  printf("grandchild pid=%d\n", getpid());
  fflush(stdout);
  while (true) pause();
}

}  // namespace

int main(int argc, char** argv) {
  Orders orders;
  if (!Parse(argc, argv, orders)) return 64;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  // The MPI variable is read so that mpirun can start the same program.
  const char* rank = Env("RANK", Env("OMPI_COMM_WORLD_RANK", "0"));
  const char* generation = Env("CADRE_GENERATION", Env("TORCHELASTIC_RESTART_COUNT", "0"));
  if (orders.ignore_term) signal(SIGTERM, SIG_IGN);
  if (orders.setsid_child) LeaveGrandchild();
  printf("probe rank=%s local=%s world=%s node=%s generation=%s restarts=%s pid=%d at_ns=%lld\n",
         rank, Env("LOCAL_RANK", "0"), Env("WORLD_SIZE", "1"), Env("GROUP_RANK", "0"), generation,
         Env("TORCHELASTIC_RESTART_COUNT", "0"), getpid(),
         static_cast<long long>(now.tv_sec) * 1000000000 + now.tv_nsec);
  fflush(stdout);
  const bool chosen = (orders.rank == nullptr || strcmp(orders.rank, rank) == 0) &&
                      (orders.generation == nullptr || strcmp(orders.generation, generation) == 0);
  if (chosen && orders.signal != 0) raise(orders.signal);
  if (chosen && orders.exit_code >= 0) return orders.exit_code;
  while (true) pause();
}
