"""Prints what there is on this machine, as JSON. Run by the interpreter that has PyTorch; needs nothing itself."""
import ctypes
import json
import os
import platform


def first_line(error):
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def driver_version():
    """Of the kernel's module: "580.65.06". None: there is none."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def driver():
    """What CUDA's driver says. It keeps nothing on a GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"error": "there is no NVIDIA driver (no libcuda.so.1)"}
    status = cuda.cuInit(0)
    if status != 0:
        return {"error": "the NVIDIA driver finds no GPU (cuInit: CUDA error %d)" % status}
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    found = {"version": driver_version(), "cuda": "%d.%d" % (number.value // 1000, number.value % 1000 // 10), "gpus": []}
    cuda.cuDeviceGetCount(ctypes.byref(number))
    for index in range(number.value):
        device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        found["gpus"].append({"name": name.value.decode(errors="replace"), "bytes": size.value})
    return found if found["gpus"] else {"error": "the NVIDIA driver sees no GPU"}


def pytorch():
    try:
        import torch
    except Exception as error:  # a wheel that does not fit fails in many ways
        return {"error": first_line(error)}
    found = {"version": torch.__version__, "folder": os.path.dirname(torch.__file__), "cuda": torch.version.cuda,
             "new_abi": torch.compiled_with_cxx11_abi(), "gpus": 0, "nccl": None, "gpu_error": None}
    if torch.version.cuda is None:
        found["gpu_error"] = "PyTorch %s is a build for the CPU" % torch.__version__
        return found
    try:
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception as error:
        found["nccl_error"] = first_line(error)
    try:
        torch.cuda.init()
        found["gpus"] = torch.cuda.device_count()
    except Exception as error:
        found["gpu_error"] = "PyTorch %s cannot use a GPU: %s" % (torch.__version__, first_line(error))
    return found


def main():
    print(json.dumps({"python": platform.python_version(), "driver": driver(), "torch": pytorch()}))


if __name__ == "__main__":
    main()
