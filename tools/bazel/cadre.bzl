"""The kinds of target this repository has."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

def _and(deps, more):
    """deps and what more has that deps has not: naming one of them in a BUILD file is no mistake."""
    if type(deps) != "list":
        # With a select() in it.
        return deps + more
    return deps + [dep for dep in more if dep not in deps]

def cadre_test(name, deps = [], tags = [], **kwargs):
    """A GoogleTest program."""
    cc_test(
        name = name,
        deps = _and(deps, ["//third_party:gtest_main", "//third_party:rpc_shared"]),
        tags = tags,
        **kwargs
    )

def e2e_test(name, deps, tags = [], **kwargs):
    """A GoogleTest program NAME.cc that starts this repository's programs as their users do."""
    cadre_test(
        name = name,
        srcs = [name + ".cc"],
        tags = ["e2e"] + tags,
        deps = _and(deps, ["//third_party:absl"]),
        **kwargs
    )

def test_library(name, header_only = False, **kwargs):
    """What tests share: NAME.h, and NAME.cc where it is not header_only."""
    cc_library(
        name = name,
        testonly = True,
        srcs = [] if header_only else [name + ".cc"],
        hdrs = [name + ".h"],
        **kwargs
    )

_PRETEND_GPU = "//worker_runtime/testing/pretend_gpu:libpretend_gpu.so"

def pretend_gpu_test(name, gpus, data = [], **kwargs):
    """A GoogleTest program whose CUDA runtime and NCCL are pretend ones, on a machine that has so many GPUs; 0: no driver."""
    cadre_test(
        name = name,
        data = data + [_PRETEND_GPU],
        env = {
            "CADRE_CUDART_LIBRARY": "$(rootpath %s)" % _PRETEND_GPU,
            "CADRE_NCCL_LIBRARY": "$(rootpath %s)" % _PRETEND_GPU,
            "CADRE_PRETEND_GPUS": str(gpus),
        },
        **kwargs
    )

def gpu_test(name, pretend_gpus, tags = [], **kwargs):
    """A GoogleTest program that skips what needs a GPU where there is none, and runs as NAME_on_pretend_gpu besides.

    Args:
      name: the program that takes the machine as it is.
      pretend_gpus: see pretend_gpu_test().
      tags: of that program alone.
      **kwargs: of both.
    """
    cadre_test(name = name, tags = tags, **kwargs)
    pretend_gpu_test(name = name + "_on_pretend_gpu", gpus = pretend_gpus, **kwargs)

def encrypted_too_test(name, encrypted_name, **kwargs):
    """A GoogleTest program that is run twice: as NAME, and as ENCRYPTED_NAME by ranks that encrypt what they send."""
    cadre_test(name = name, **kwargs)
    cadre_test(name = encrypted_name, env = {"CADRE_ENCRYPT": "1"}, **kwargs)

def split_test(rule, name, long_name, cases, tags = [], **kwargs):
    """One GoogleTest program as two targets: NAME runs `cases`, a filter, and LONG_NAME, which takes long, the others."""
    others = cases[1:] if cases.startswith("-") else "-" + cases
    rule(name = name, args = ["--gtest_filter=" + cases], tags = tags, **kwargs)
    rule(name = long_name, args = ["--gtest_filter=" + others], tags = tags + ["takes_long"], **kwargs)

def fuzz_test(name, deps, corpus = None, src = None):
    """A program from NAME.cc, which defines LLVMFuzzerTestOneInput: NAME for libFuzzer (tools/fuzz), and NAME_test over its corpus in every build.

    Args:
      name: of the program.
      deps: of both.
      corpus: the folder of tests/fuzz/corpus, where it is not NAME without _fuzz.
      src: the source, where it is not NAME.cc.
    """
    src = src or name + ".cc"
    corpus = "//tests/fuzz:" + (corpus or name[:-len("_fuzz")])
    deps = _and(deps, ["//third_party:rpc_shared"])
    cc_binary(
        name = name,
        testonly = True,
        srcs = [src],
        linkopts = ["-fsanitize=fuzzer"],
        # Needs clang.
        tags = ["fuzz", "manual"],
        deps = deps + ["//tests/fuzz:fuzz_target"],
    )
    cc_test(
        name = name + "_test",
        size = "small",
        srcs = [src],
        args = ["$(locations %s)" % corpus],
        data = [corpus],
        deps = deps + ["//tests/fuzz:replay"],
    )

def cadre_binary(name, deps = [], **kwargs):
    """A program linked to the machine's shared libraries."""
    cc_binary(
        name = name,
        deps = _and(deps, ["//third_party:rpc_shared"]),
        **kwargs
    )

def cadre_static_binary(name, deps = [], **kwargs):
    """A program that needs only the C and C++ libraries to run, and starts in a few milliseconds."""
    cc_binary(
        name = name,
        # At an address of its own, as Debian's python3 is: one that can lie anywhere has 44,000 addresses set right and a
        # hundred pages copied before main().
        linkopts = select({
            "//third_party:with_asan": [],
            "//third_party:with_tsan": [],
            "//conditions:default": ["-no-pie"],
        }),
        deps = _and(deps, ["//third_party:rpc_static"]),
        **kwargs
    )

_TORCH = ["//third_party:torch", "//third_party:rpc_shared"]

# The headers of today's libtorch ask for C++20; everything else stays C++17.
_TORCH_COPTS = select({
    "//third_party:with_torch_pypi": ["-std=c++20"],
    "//conditions:default": [],
})

def torch_library(name, deps = [], copts = [], **kwargs):
    """A library whose sources or headers include libtorch's."""
    cc_library(
        name = name,
        deps = _and(deps, ["//third_party:torch"]),
        copts = copts + _TORCH_COPTS,
        **kwargs
    )

def adapter_library(name, srcs, deps = [], **kwargs):
    """A part of the adapter for libtorch. With PyPI's libtorch, whose headers take 20 s of each source, all parts are compiled as users do: as one unit."""
    torch_library(
        name = name,
        srcs = select({
            "//third_party:with_torch_pypi": [],
            "//conditions:default": srcs,
        }),
        deps = deps + select({
            "//third_party:with_torch_pypi": ["//worker_runtime/torch:adapter_as_one_unit"],
            "//conditions:default": [],
        }),
        **kwargs
    )

def adapter_sources():
    """The package's sources, and the headers beside them, as :adapter_sources. They are installed: users compile them against the libtorch that they have."""
    native.filegroup(
        name = "adapter_sources",
        srcs = native.glob(
            [
                "*.cc",
                "*.h",
            ],
            exclude = [
                "*_for_test.h",
                "*_test.cc",
            ],
        ),
    )

def torch_binary(name, deps = [], copts = [], **kwargs):
    """A program with libtorch in it."""
    cc_binary(
        name = name,
        deps = _and(deps, _TORCH),
        copts = copts + _TORCH_COPTS,
        **kwargs
    )

def torch_test(name, deps = [], copts = [], tags = [], **kwargs):
    """A GoogleTest program with libtorch in it. Not run under sanitizers, which libtorch was not built with."""
    cc_test(
        name = name,
        # As cadre starts workers: ranks on threads of one process would else share the threads of one BLAS.
        env = {"OMP_NUM_THREADS": "1"},
        deps = _and(deps, ["//third_party:gtest_main"] + _TORCH),
        copts = copts + _TORCH_COPTS,
        tags = tags + ["nosan", "torch"],
        **kwargs
    )

def _proto_label(label, suffix):
    if ":" not in label:
        fail("write %s with a colon" % label)
    return label + suffix

def cadre_cc_proto(name, srcs, deps = [], grpc = False, visibility = ["//visibility:public"]):
    """C++ for .proto files. Paths in `import` and `#include` start at the root of the repository.

    Targets: NAME (the .proto files, with those they import), NAME_cc (messages) and, with grpc = True, NAME_cc_grpc (the
    services), so that code that only handles messages does not depend on gRPC.

    Args:
      name: by custom the file's name without .proto.
      srcs: .proto files of this package.
      deps: other cadre_cc_proto targets, by their plain name.
      grpc: whether there are services in srcs.
      visibility: of all the targets.
    """
    native.filegroup(
        name = name,
        srcs = srcs + deps,
        visibility = visibility,
    )
    stems = [src[:-len(".proto")] for src in srcs]
    locations = " ".join(["$(location %s)" % src for src in srcs])
    native.genrule(
        name = name + "_cc_generate",
        srcs = srcs + deps,
        outs = [stem + suffix for stem in stems for suffix in [".pb.h", ".pb.cc"]],
        cmd = "protoc -I. --cpp_out=$(GENDIR) " + locations,
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name + "_cc",
        srcs = [stem + ".pb.cc" for stem in stems],
        hdrs = [stem + ".pb.h" for stem in stems],
        copts = ["-w"],
        deps = [_proto_label(dep, "_cc") for dep in deps] + ["//third_party:protobuf"],
        visibility = visibility,
    )
    if not grpc:
        return
    native.genrule(
        name = name + "_cc_grpc_generate",
        srcs = srcs + deps,
        outs = [stem + suffix for stem in stems for suffix in [".grpc.pb.h", ".grpc.pb.cc"]],
        cmd = "protoc -I. --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR) " + locations,
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name + "_cc_grpc",
        srcs = [stem + ".grpc.pb.cc" for stem in stems],
        hdrs = [stem + ".grpc.pb.h" for stem in stems],
        copts = ["-w"],
        deps = [":" + name + "_cc", "//third_party:grpc"],
        visibility = visibility,
    )
