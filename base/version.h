// The version of Cadre: of the command and of the library that programs link.
#ifndef CADRE_BASE_VERSION_H_
#define CADRE_BASE_VERSION_H_

namespace cadre {

inline constexpr char kVersion[] = "0.4.0";

}  // namespace cadre

#endif  // CADRE_BASE_VERSION_H_
