"""The CUDA toolkit and NCCL's header, as the repository @cuda.

Looked for under $CUDA_HOME, else /usr/local/cuda; an empty CUDA_HOME means: none. Where there is none the same targets
exist, empty, and the definitions below are absent, so that the build succeeds everywhere:

  CADRE_HAVE_CUDA_HEADERS   cuda_runtime.h can be included
  CADRE_HAVE_NCCL_HEADERS   nccl.h can be included

The target cudart is CUDA's runtime as kernels have it linked into them, statically. Everything else loads the runtime, NCCL,
NVML and the driver at run time.
"""

_EMPTY = 'cc_library(name = "{name}")'

def _cuda_repository_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    build = ['# Written by third_party/cuda.bzl.\npackage(default_visibility = ["//visibility:public"])']

    have_cuda = bool(home) and ctx.path(home + "/include/cuda_runtime.h").exists
    nvcc = ""
    cudart = ""
    if have_cuda:
        ctx.symlink(home + "/include", "include")
        build.append("""cc_library(
    name = "cuda_headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/nv/**", "include/cccl/nv/**"], allow_empty = True),
    includes = ["include"],
    defines = ["CADRE_HAVE_CUDA_HEADERS"],
)""")
        if ctx.path(home + "/bin/nvcc").exists:
            nvcc = home + "/bin/nvcc"
        for folder in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]:
            archive = "%s/%s/libcudart_static.a" % (home, folder)
            if not cudart and ctx.path(archive).exists:
                cudart = archive
    else:
        build.append(_EMPTY.format(name = "cuda_headers"))

    nccl = ""
    if have_cuda:
        for folder in [home + "/include", "/usr/include", "/usr/local/include"]:
            if not nccl and ctx.path(folder + "/nccl.h").exists:
                nccl = folder
    if nccl:
        ctx.symlink(nccl + "/nccl.h", "nccl/nccl.h")
        build.append("""cc_library(
    name = "nccl_headers",
    hdrs = ["nccl/nccl.h"],
    includes = ["nccl"],
    defines = ["CADRE_HAVE_NCCL_HEADERS"],
    deps = [":cuda_headers"],
)""")
    else:
        build.append(_EMPTY.format(name = "nccl_headers"))

    # The static runtime loads the driver when it is first used, so a program with kernels starts without a GPU.
    can_compile = bool(nvcc and cudart)
    if can_compile:
        build.append("""cc_library(
    name = "cudart",
    linkopts = ["%s", "-ldl", "-lrt", "-pthread"],
    deps = [":cuda_headers"],
)""" % cudart)
    else:
        build.append(_EMPTY.format(name = "cudart"))

    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "\n\n".join(build) + "\n", executable = False)
    ctx.file("defs.bzl", "NVCC = %r\n" % (nvcc if can_compile else ""), executable = False)

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME"],
    local = True,
    configure = True,
)
