// What a program that failed said of it, in the last lines of its standard error: the exception
// that ended a Python program, as CPython prints it, or a C++ one, as libstdc++ does, a failed
// assert(), or what ended one before its first line. Pure.
#ifndef CADRE_RPC_PROGRAM_ERROR_H_
#define CADRE_RPC_PROGRAM_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "proto/failure.pb.h"

namespace cadre::rpc {

struct ProgramError {
  enum class Kind {
    kException,
    // The program itself, a module, a shared library or correct syntax is missing: starting it
    // again changes nothing.
    kCannotLoad,
    // An allocation failed, on the host or on a device; the kernel killed nobody.
    kOutOfMemory,
    // It lost the connection to another rank, or waited for it in vain: that one is the cause.
    kLostPeer,
    // No exception: the last line that it wrote, as sys.exit("text") does.
    kLastLine,
  };
  Kind kind = Kind::kException;
  // One line: "ValueError: no sample 17 (train.py, line 40)", where the line is the innermost one
  // that is the user's own, not an installed package's; with "in DataLoader worker process 0" where
  // it was raised there. What was written after it follows where it may not be what ended the
  // program.
  std::string text;
};

// nullopt: the lines do not say, or the program was killed, could not be started or succeeded.
std::optional<ProgramError> FindProgramError(const v1::WorkerExit& exit);

// When it failed, in whole seconds of its node's clock, as its torchelastic error file says.
// nullopt: there is none.
std::optional<int64_t> ErrorFileSeconds(const v1::WorkerExit& exit);

// Whether it is kLostPeer.
bool LostItsPeer(const v1::WorkerExit& exit);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_PROGRAM_ERROR_H_
