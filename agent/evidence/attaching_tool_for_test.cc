// attaching_tool_for_test PID: a debugger that attaches to a process, and never ends.
// attaching_tool_for_test: a process that prints "ready", then takes no signal until a line is
// typed, and prints "here" on SIGUSR1.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

namespace {

void Say(const char* line) {
  const auto bytes = static_cast<ssize_t>(strlen(line));
  if (write(STDOUT_FILENO, line, strlen(line)) != bytes) _exit(1);
}

void SayHere(int) { Say("here\n"); }

int AwaitLine(void*) {
  char typed = 0;
  return read(STDIN_FILENO, &typed, 1) == 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) {
    if (ptrace(PTRACE_ATTACH, atoi(argv[1]), nullptr, nullptr) != 0) return 1;
    for (;;) pause();
  }
  signal(SIGUSR1, SayHere);
  Say("ready\n");
  // The parent waits for its child without taking signals, like the parent of a vfork().
  static char stack[64 << 10];
  if (clone(AwaitLine, stack + sizeof(stack), CLONE_VFORK | SIGCHLD, nullptr) < 0) return 1;
  for (;;) pause();
}
