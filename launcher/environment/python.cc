#include "launcher/environment/python.h"

#include <system_error>

namespace cadre::launcher {
namespace {

bool IsSet(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found != environment.end() && !found->second.empty();
}

}  // namespace

std::string PythonFor(const std::map<std::string, std::string>& environment,
                      const std::filesystem::path& program) {
  if (IsSet(environment, "PYTHON_EXEC")) return environment.at("PYTHON_EXEC");
  std::error_code error;
  if (IsSet(environment, "VIRTUAL_ENV")) {
    const std::filesystem::path active =
        std::filesystem::path(environment.at("VIRTUAL_ENV")) / "bin" / "python3";
    return std::filesystem::exists(active, error) ? active.string() : "";
  }
  if (IsSet(environment, "CONDA_PREFIX")) return "";
  const std::filesystem::path folder = program.parent_path();
  const std::filesystem::path python = folder / "python3";
  // PEP 405: what makes a folder a virtual environment.
  const bool environment_here =
      std::filesystem::exists(folder.parent_path() / "pyvenv.cfg", error) &&
      std::filesystem::exists(python, error);
  return environment_here ? python.string() : "";
}

std::filesystem::path ThisProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

}  // namespace cadre::launcher
