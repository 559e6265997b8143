"""The libtorch of PyPI's torch, as the repository @torch_pypi, for --config=torch_pypi.

It is that of the virtual environment that the environment variable CADRE_PYTHON_ENV names (tools/python_env makes one). Where it
names none the same targets exist, and say so when they are built: nobody needs an environment who builds without that
configuration.

It is a CUDA build. No CUDA toolkit is needed: what its libraries need they find beside themselves.
"""

_MISSING = """genrule(
    name = "missing",
    outs = ["missing.h"],
    cmd = "echo 'CADRE_PYTHON_ENV={environment} names no environment with torch, which --config=torch_pypi needs: " +
          "export CADRE_PYTHON_ENV=`tools/python_env`' >&2; exit 1",
)
cc_library(name = "torch", hdrs = [":missing"])
cc_library(name = "python", hdrs = [":missing"])
"""

_FOUND = """cc_library(
    name = "torch",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"]),
    # As system headers, whose warnings are not ours.
    includes = ["include", "include/torch/csrc/api/include"],
    linkopts = [
        "-L{lib}",
        "-Wl,-rpath,{lib}",
        # Nothing names it, but it brings CUDA's operators into the process, which register themselves.
        "-Wl,--push-state,--no-as-needed,-ltorch,--pop-state",
        "-ltorch_cpu",
        "-lc10",
        # The libraries of CUDA lie where only these find them.
        "-Wl,--allow-shlib-undefined",
    ],
)
cc_library(
    name = "python",
    defines = ['CADRE_TORCH_PYTHON=\\\\"{python}\\\\"'],
)
"""

def _torch_folder(ctx, environment):
    """The folder of the package torch in a virtual environment, or None."""
    lib = ctx.path(environment + "/lib")
    if not lib.exists:
        return None
    for python in lib.readdir():
        torch = python.get_child("site-packages").get_child("torch")
        if torch.get_child("lib").get_child("libtorch_cpu.so").exists:
            return torch
    return None

def _torch_pypi_repository_impl(ctx):
    environment = ctx.os.environ.get("CADRE_PYTHON_ENV", "")
    torch = _torch_folder(ctx, environment) if environment else None
    build = ['# Written by third_party/torch_pypi.bzl.\npackage(default_visibility = ["//visibility:public"])']
    if torch:
        ctx.symlink(torch.get_child("include"), "include")
        build.append(_FOUND.format(lib = torch.get_child("lib"), python = environment + "/bin/python"))
    else:
        build.append(_MISSING.format(environment = environment))
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "\n".join(build), executable = False)

torch_pypi_repository = repository_rule(
    implementation = _torch_pypi_repository_impl,
    environ = ["CADRE_PYTHON_ENV"],
    local = True,
    configure = True,
)
