/* How jemalloc is set. gRPC's threads come and go, and an arena keeps what its threads leave behind. By default there
 * are four for each core; neither a server nor a launcher has more threads that allocate much than this. */

const char* malloc_conf = "narenas:4";
