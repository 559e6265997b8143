"""The machine's C++ libraries, found by pkg-config, as the repository @system.

Compiling and linking are kept apart. A library target (`@system//:grpc`) only says how to compile against it; it adds
nothing to a link line. What is linked, and whether statically, is decided once, by the binary, with one of

  @system//:rpc_static   archives: the result needs only the C and C++ libraries
  @system//:rpc_shared   shared libraries: for tests, and for whatever shares a process with libtorch, which brings
                         its own shared Protobuf

so that the same library can go into both kinds of binary and no process ever has two copies of Protobuf.
"""

# pkg-config modules behind both link lines.
_RPC_MODULES = [
    "grpc++",
    "protobuf",
    "yaml-cpp",
    "sqlite3",
    "hwloc",
    "libcares",
    "libevent_core",
    "re2",
    "openssl",
    "zlib",
]

# Header-only or linked by the choice above: name -> compile definitions.
_HEADERS = {
    "absl": [],
    "cli11": [],
    "gloo_headers": [],
    "gtest": [],
    "grpc": [],
    "hwloc": [],
    "libevent": [],
    "nlohmann_json": [],
    "openssl": [],
    "protobuf": [],
    "sqlite": [],
    "yaml_cpp": [],
}

# Linked wherever they are named. name -> (header to look for, link options, extra dependencies).
_LINKED = {
    "benchmark": ("/usr/include/benchmark/benchmark.h", ["-lbenchmark", "-lpthread"], []),
    "benchmark_main": ("/usr/include/benchmark/benchmark.h", ["-lbenchmark_main", "-lbenchmark", "-lpthread"], []),
    "fuse": ("/usr/include/fuse3/fuse.h", ["-lfuse3", "-lpthread"], []),
    "gloo": ("/usr/include/gloo/context.h", ["-lgloo"], []),
    # Archive alone, for what is linked statically. Behind it the C++ library's, which has an operator new of its own to give
    # and would take 0.3 ms to load; the shared one, which the compiler names last, is left out as nothing needs it then.
    "jemalloc": ("/usr/include/jemalloc/jemalloc.h", ["-l:libjemalloc_pic.a", "-l:libstdc++.a", "-Wl,--as-needed"], []),
    "gtest_link": ("/usr/include/gmock/gmock.h", ["-lgmock", "-lgtest", "-lpthread"], [":gtest"]),
    "gtest_main": ("/usr/include/gmock/gmock.h", ["-lgmock_main", "-lgmock", "-lgtest", "-lpthread"], [":gtest"]),
    "jpeg": ("/usr/include/jpeglib.h", ["-ljpeg"], []),
}

_HINT = "run tools/install_packages"

def _run(ctx, arguments):
    result = ctx.execute(arguments)
    if result.return_code != 0:
        fail("%s failed: %s%s (%s)" % (" ".join(arguments), result.stdout, result.stderr, _HINT))
    return [word for word in result.stdout.replace("\n", " ").split(" ") if word]

def _unique(words):
    return {word: None for word in words}.keys()

def _link_lines(ctx):
    """The link options of rpc_shared and rpc_static."""
    absl = [
        line.split(" ")[0]
        for line in ctx.execute(["pkg-config", "--list-all"]).stdout.split("\n")
        if line.startswith("absl_")
    ]
    if not absl:
        fail("pkg-config knows no absl_* module: " + _HINT)
    modules = _RPC_MODULES + absl
    shared = _run(ctx, ["pkg-config", "--libs"] + modules)
    static = _run(ctx, ["pkg-config", "--static", "--libs"] + modules)

    shared_libs = sorted(_unique([word for word in shared if word.startswith("-l")]))
    folder = ctx.execute(["g++", "-print-file-name=libgrpc++.a"]).stdout.strip()
    folder = str(ctx.path(folder).dirname)
    archives = []
    for word in sorted(_unique([word for word in static if word.startswith("-l")])):
        # glibc's own parts stay shared, and udev is replaced by no_udev.c.
        if ctx.path("%s/lib%s.a" % (folder, word[2:])).exists and word not in ["-lm", "-ldl", "-lrt", "-lpthread"]:
            archives.append(word)
    return (
        ["-Wl,--push-state,--as-needed"] + shared_libs + ["-Wl,--pop-state", "-pthread"],
        ["-Wl,-Bstatic", "-Wl,--start-group"] + archives +
        ["-Wl,--end-group", "-Wl,-Bdynamic", "-ldl", "-lrt", "-lm", "-pthread"],
    )

def _library(name, **attributes):
    lines = ["cc_library(", "    name = %r," % name]
    for key in sorted(attributes.keys()):
        if attributes[key]:
            lines.append("    %s = %s," % (key, attributes[key] if key == "hdrs" else repr(attributes[key])))
    lines.append(")")
    return "\n".join(lines)

def _system_repository_impl(ctx):
    rpc_shared, rpc_static = _link_lines(ctx)
    build = [
        "# Written by third_party/system.bzl.",
        'package(default_visibility = ["//visibility:public"])',
    ]
    for name in sorted(_HEADERS.keys()):
        build.append(_library(name, defines = _HEADERS[name]))
    for name in sorted(_LINKED.keys()):
        header, linkopts, deps = _LINKED[name]
        if not ctx.path(header).exists:
            fail("%s is missing: %s" % (header, _HINT))
        build.append(_library(name, linkopts = linkopts, deps = deps))
    build.append(_library("rpc_shared", linkopts = rpc_shared))
    build.append(_library("rpc_static", linkopts = rpc_static))

    # libtorch's C++ front end is not on the default include path.
    api = "/usr/include/torch/csrc/api/include"
    if not ctx.path(api).exists:
        fail("%s is missing: %s" % (api, _HINT))
    ctx.symlink(api, "torch_api")
    build.append(_library("torch_headers", hdrs = 'glob(["torch_api/**/*.h"])', includes = ["torch_api"]))
    build.append(_library("torch", linkopts = ["-ltorch", "-ltorch_cpu", "-lc10"], deps = [":torch_headers"]))
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "\n\n".join(build) + "\n", executable = False)

system_repository = repository_rule(
    implementation = _system_repository_impl,
    environ = ["PKG_CONFIG_PATH"],
    local = True,
    configure = True,
)
