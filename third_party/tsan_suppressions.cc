// The thread sanitizer's suppressions: only in programs built with --config=tsan. In the program
// and not in a file, so that a program started by a test, somewhere else, has them too.

extern "C" const char* __tsan_default_suppressions() {
  // The machine's libraries are not instrumented: what they do to memory through malloc, memcpy,
  // recvmsg and the like is not looked at, since the sanitizer cannot see how they order it. Our
  // own code, called from them or calling them, is.
  return "called_from_lib:libgpr.so\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libprotobuf.so\n"
         "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_cord_internal.so\n"
         "called_from_lib:libabsl_random_internal_pool_urbg.so\n"
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_strerror.so\n"
         "called_from_lib:libabsl_strings.so\n";
}
