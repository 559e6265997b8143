// What the examples' flags share: an error is one line that says what was expected.
#ifndef CADRE_EXAMPLES_FLAGS_FLAGS_H_
#define CADRE_EXAMPLES_FLAGS_FLAGS_H_

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"

namespace cadre::flags {

// The exit status that sysexits.h defines for wrong usage.
inline constexpr int kUsage = 64;

inline CLI::Validator Number(const std::string& which, std::function<bool(double)> holds) {
  return CLI::Validator(
      [which, holds = std::move(holds)](std::string& text) {
        char* end = nullptr;
        errno = 0;
        const double value = std::strtod(text.c_str(), &end);
        const bool whole = end != text.c_str() && *end == '\0' && errno == 0;
        if (whole && std::isfinite(value) && holds(value)) return std::string();
        return "expected " + which + ", got '" + text + "'";
      },
      "");
}

// Replaces CLI11's own validator, whose error ends with a number of 309 digits.
inline CLI::Validator Positive() {
  return Number("a number above 0", [](double value) { return value > 0; });
}
inline CLI::Validator NotNegative() {
  return Number("0 or a number above it", [](double value) { return value >= 0; });
}

// Returns the exit status if the program is to end: 0 after --help, kUsage after an error.
inline std::optional<int> Parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const std::string path = argv[0];
    std::fprintf(stderr, "%s: %s; --help lists the flags\n",
                 path.substr(path.rfind('/') + 1).c_str(), error.what());
    return kUsage;
  }
}

}  // namespace cadre::flags

#endif  // CADRE_EXAMPLES_FLAGS_FLAGS_H_
