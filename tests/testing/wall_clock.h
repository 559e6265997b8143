// A wall clock that tests can set while programs run. Linked in, or preloaded as libwall_clock.so,
// it replaces libc's clock for the process. The monotonic clock is unchanged.
#ifndef CADRE_TESTS_TESTING_WALL_CLOCK_H_
#define CADRE_TESTS_TESTING_WALL_CLOCK_H_

// This environment variable names the file through which processes share their clock's offset: 8
// bytes, in seconds. It is read once, when the process starts.
#define CADRE_WALL_CLOCK_FILE "CADRE_WALL_CLOCK_FILE"

// Sets the clock of this process, and of those that share its file, `seconds` after (negative:
// before) the true time.
extern "C" void SetWallClock(long seconds);

#endif  // CADRE_TESTS_TESTING_WALL_CLOCK_H_
