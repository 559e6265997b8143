// The Python with the same torch as the libtorch that programs are linked to: tests and benchmarks
// compare with it.
#ifndef CADRE_THIRD_PARTY_TORCH_PYTHON_H_
#define CADRE_THIRD_PARTY_TORCH_PYTHON_H_

namespace cadre {

#ifdef CADRE_TORCH_PYTHON
// --config=torch_pypi
inline constexpr char kTorchPython[] = CADRE_TORCH_PYTHON;
inline constexpr bool kTorchIsDebians = false;
#else
inline constexpr char kTorchPython[] = "/usr/bin/python3";
inline constexpr bool kTorchIsDebians = true;
#endif

}  // namespace cadre

#endif  // CADRE_THIRD_PARTY_TORCH_PYTHON_H_
