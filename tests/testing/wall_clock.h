// A wall clock that can be set while programs run, for tests. Linked in, or preloaded as
// libwall_clock.so, it takes the place of libc's for the process. The monotonic clock stays as it
// is.
#ifndef CADRE_TESTS_TESTING_WALL_CLOCK_H_
#define CADRE_TESTS_TESTING_WALL_CLOCK_H_

// Names the file by which processes share their clock's setting: 8 bytes, seconds. Read once, when
// the process starts.
#define CADRE_WALL_CLOCK_FILE "CADRE_WALL_CLOCK_FILE"

// Sets the clock of this process, and of those that share its file, so far before (-) or after the
// true time.
extern "C" void SetWallClock(long seconds);

#endif  // CADRE_TESTS_TESTING_WALL_CLOCK_H_
