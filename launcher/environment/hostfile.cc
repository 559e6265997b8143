#include "launcher/environment/hostfile.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre::launcher {
namespace {

// The host is an argument of ssh, which must not take it for an option.
bool IsDestination(absl::string_view text) {
  if (text.empty() || text[0] == '-' || std::count(text.begin(), text.end(), '@') > 1) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == '@' || c == ':';
  });
}

absl::StatusOr<HostfileHost> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  HostfileHost host;
  absl::string_view destination = words[0];
  // mpiexec's "host:2". An IPv6 address has more than one colon.
  if (const size_t colon = destination.find(':');
      colon != destination.npos && destination.rfind(':') == colon) {
    if (!absl::SimpleAtoi(destination.substr(colon + 1), &host.slots) || host.slots == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected HOST:SLOTS, got '", destination.substr(0, 64), "'"));
    }
    destination = destination.substr(0, colon);
  }
  host.destination = std::string(destination);
  const size_t at = destination.find('@');
  host.name = std::string(at == destination.npos ? destination : destination.substr(at + 1));
  if (!IsDestination(destination) || host.name.empty() || at == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected HOST or USER@HOST, got '", words[0].substr(0, 64), "'"));
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> option = absl::StrSplit(words[i], '=');
    // mpirun's limit for oversubscription has no meaning here.
    if (option.first == "max_slots" || option.first == "max-slots") continue;
    if (option.first == "slots" && host.slots > 0) {
      return absl::InvalidArgumentError("the number of slots comes twice");
    }
    if (option.first != "slots" || !absl::SimpleAtoi(option.second, &host.slots) ||
        host.slots == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected slots=N, got '", words[i].substr(0, 64), "'"));
    }
  }
  return host;
}

}  // namespace

absl::StatusOr<std::vector<HostfileHost>> ParseHostfile(absl::string_view text,
                                                        absl::string_view file) {
  std::vector<HostfileHost> hosts;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::StatusOr<HostfileHost> host = ParseLine(line);
    if (!host.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": ", host.status().message()));
    }
    const auto same = std::find_if(hosts.begin(), hosts.end(),
                                   [&](const HostfileHost& h) { return h.name == host->name; });
    if (same == hosts.end()) {
      hosts.push_back(*host);
    } else {
      same->slots = std::max<uint32_t>(1, same->slots) + std::max<uint32_t>(1, host->slots);
    }
    if (hosts.size() > kMaxHostfileHosts) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": expected at most ", kMaxHostfileHosts, " hosts"));
    }
  }
  if (!hosts.empty()) return hosts;
  return absl::InvalidArgumentError(absl::StrCat(file, ": expected a host per line, found none"));
}

}  // namespace cadre::launcher
