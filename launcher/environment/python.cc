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
  if (IsSet(environment, "VIRTUAL_ENV") || IsSet(environment, "CONDA_PREFIX")) return "";
  const std::filesystem::path folder = program.parent_path();
  const std::filesystem::path python = folder / "python3";
  std::error_code error;
  // PEP 405: what makes a folder a virtual environment.
  const bool environment_here =
      std::filesystem::exists(folder.parent_path() / "pyvenv.cfg", error) &&
      std::filesystem::exists(python, error);
  return environment_here ? python.string() : "";
}

}  // namespace cadre::launcher
