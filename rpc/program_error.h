// Finds the error that a failed program wrote in the last lines of its standard error: the
// exception that ended a Python program, as CPython prints it, or a C++ one, as libstdc++ does, a
// failed assert(), or an error before the program's first line. Pure.
#ifndef CADRE_RPC_PROGRAM_ERROR_H_
#define CADRE_RPC_PROGRAM_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"

namespace cadre::rpc {

struct ProgramError {
  enum class Kind {
    kException,
    // The program itself, a module, a shared library or correct syntax is missing: a restart does
    // not help.
    kCannotLoad,
    // An allocation failed, on the host or on a device; the kernel did not kill a process.
    kOutOfMemory,
    // The program lost the connection to another rank, or its wait for one timed out: that rank is
    // the cause.
    kLostPeer,
    // There is no exception; `text` is the last line written, as by sys.exit("text").
    kLastLine,
  };
  Kind kind = Kind::kException;
  // Set with kLostPeer if no connection broke, but a timeout ended the wait.
  bool timed_out = false;
  // One line: "ValueError: no sample 17 (train.py, line 40)", where the line is the innermost one
  // in the user's own code, not in an installed package, with "in DataLoader worker process 0" if
  // it was raised there. If the exception may not be what ended the program, the last line written
  // follows.
  std::string text;
};

// nullopt: the lines show no error, or the program was killed, could not be started or succeeded.
std::optional<ProgramError> FindProgramError(const v1::WorkerExit& exit);

// When the program failed according to its torchelastic error file, in whole seconds of its node's
// clock. nullopt: the file does not tell.
std::optional<int64_t> ErrorFileSeconds(const v1::WorkerExit& exit);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_PROGRAM_ERROR_H_
