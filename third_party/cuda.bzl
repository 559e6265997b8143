"""The headers of CUDA and NCCL, as the repository @cuda.

Looked for under $CUDA_HOME, else /usr/local/cuda; an empty CUDA_HOME means: none. Where there is none the same targets
exist, empty, and the definitions below are absent, so that the build succeeds everywhere:

  CADRE_HAVE_CUDA_HEADERS   cuda_runtime.h can be included
  CADRE_HAVE_NCCL_HEADERS   nccl.h can be included

Nothing is linked with CUDA's libraries: the runtime, NCCL, NVML and the driver are loaded at run time.
"""

_EMPTY = 'cc_library(name = "{name}")'

def _cuda_repository_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    build = ['# Written by third_party/cuda.bzl.\npackage(default_visibility = ["//visibility:public"])']

    have_cuda = bool(home) and ctx.path(home + "/include/cuda_runtime.h").exists
    if have_cuda:
        ctx.symlink(home + "/include", "include")
        build.append("""cc_library(
    name = "cuda_headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/nv/**", "include/cccl/nv/**"], allow_empty = True),
    includes = ["include"],
    defines = ["CADRE_HAVE_CUDA_HEADERS"],
)""")
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

    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "\n\n".join(build) + "\n", executable = False)

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME"],
    local = True,
    configure = True,
)
