"""Debian's rules_cc, adjusted to Debian's Bazel.

The package is newer than Bazel 4.2.3: two files load `use_cpp_toolchain`, which this Bazel does not have yet.
Without the new toolchain resolution an empty list means the same.
"""

_FILES = [
    "cc/private/rules_impl/cc_flags_supplier.bzl",
    "cc/private/rules_impl/compiler_flag.bzl",
]

def _patched_rules_cc_impl(ctx):
    source = ctx.attr.path
    if not ctx.path(source).exists:
        fail("%s is missing: run tools/install_packages" % source)
    copied = ctx.execute(["cp", "-rL", source + "/.", "."])
    if copied.return_code != 0:
        fail("cannot copy %s: %s" % (source, copied.stderr))
    for name in _FILES:
        if not ctx.path(name).exists:
            continue
        text = ctx.read(name)
        text = text.replace(', "use_cpp_toolchain"', "").replace("use_cpp_toolchain()", "[]")
        ctx.file(name, text, executable = False)

patched_rules_cc = repository_rule(
    implementation = _patched_rules_cc_impl,
    attrs = {"path": attr.string(mandatory = True)},
    local = True,
)
