"""What Bazel itself asks for, from Debian's packages."""

load(":patched_rules_cc.bzl", "patched_rules_cc")

def _empty_coverage_tools_impl(ctx):
    ctx.file("WORKSPACE", "")
    ctx.file(
        "BUILD",
        'filegroup(name = "coverage_report_generator", visibility = ["//visibility:public"])\n',
    )

# Every test target refers to the coverage report generator, which Debian does not package and we do not run.
_empty_coverage_tools = repository_rule(implementation = _empty_coverage_tools_impl)

def bazel_rules():
    """Declares the repositories that Bazel 4.2 would otherwise download."""
    patched_rules_cc(name = "rules_cc", path = "/usr/share/bazel/rules/cc")
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")
    native.local_repository(name = "bazel_skylib", path = "/usr/share/bazel/tools/skylib")
    native.local_repository(name = "platforms", path = "/usr/share/bazel/tools/platforms")
    _empty_coverage_tools(name = "remote_coverage_tools")
