"""write_wheel.py TREE VERSION README OUTPUT: a wheel of the files beneath TREE, the same bytes for the same files.
write_wheel.py --name WHEEL: what the file of that wheel is called.

TREE is what is to be in the wheel but for its description: modules, and DISTRIBUTION.data/scripts. The platform's tag is that of
PEP 600, by what the programs and libraries in it ask of glibc and of libstdc++.
"""
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

NAME = "cadre_train"
# The newest symbols that each tag allows, of glibc and of libstdc++; from the policies of auditwheel.
POLICIES = [
    ((2, 34), (3, 4, 29)),
    ((2, 35), (3, 4, 30)),
]
METADATA = """\
Metadata-Version: 2.1
Name: cadre-train
Version: {version}
Summary: A launcher, rendezvous and runtime for distributed training: restarts failed workers in a tenth of a second
Keywords: pytorch,distributed,torchrun,elastic,slurm
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""
# What PyTorch looks for when a program asks for a backend of this name, and torchrun for a rendezvous backend.
ENTRY_POINTS = """\
[torch.distributed.backends]
cadre = cadre.torch_backend:register

[torchrun.handlers]
cadre = cadre.torch_rendezvous:handler
"""


def files_of(tree):
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            yield os.path.relpath(path, tree), path


def versions(text, name):
    return [tuple(map(int, found.split("."))) for found in re.findall(r"\b%s_([0-9.]+)" % name, text)]


def platform_of(tree):
    glibc, libstdcxx = [(2, 17)], [(3, 4)]
    for _, path in files_of(tree):
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        listed = subprocess.run(["objdump", "-p", path], check=True, capture_output=True, text=True).stdout
        glibc += versions(listed, "GLIBC")
        libstdcxx += versions(listed, "GLIBCXX")
    for tag, allowed in POLICIES:
        if max(glibc) <= tag and max(libstdcxx) <= allowed:
            return "manylinux_%d_%d_%s" % (tag + (os.uname().machine,))
    sys.exit("write_wheel.py: no tag is known for GLIBC_%s and GLIBCXX_%s" % (max(glibc), max(libstdcxx)))


def add(wheel, name, content, executable):
    entry = zipfile.ZipInfo(name)  # of 1 January 1980
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    wheel.writestr(entry, content, compresslevel=9)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d\n" % (name, digest, len(content))


def main(tree, version, readme, output):
    info = "%s-%s.dist-info/" % (NAME, version)
    with open(readme, encoding="utf-8") as file:
        metadata = METADATA.format(version=version, readme=file.read())
    tag = "Wheel-Version: 1.0\nGenerator: cadre\nRoot-Is-Purelib: false\nTag: py3-none-%s\n" % platform_of(tree)
    record = ""
    with zipfile.ZipFile(output, "w") as wheel:
        for name, path in sorted(files_of(tree)):
            with open(path, "rb") as file:
                record += add(wheel, name, file.read(), os.access(path, os.X_OK))
        described = (("METADATA", metadata), ("WHEEL", tag), ("entry_points.txt", ENTRY_POINTS), ("top_level.txt", "cadre\n"))
        for name, text in described:
            record += add(wheel, info + name, text.encode(), False)
        add(wheel, info + "RECORD", (record + info + "RECORD,,\n").encode(), False)


def name_of(wheel):
    with zipfile.ZipFile(wheel) as opened:
        info = next(name for name in opened.namelist() if name.endswith(".dist-info/WHEEL"))
        tag = re.search("^Tag: (.*)$", opened.read(info).decode(), re.MULTILINE).group(1)
    return "%s-%s.whl" % (info.split(".dist-info")[0], tag)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--name":
        print(name_of(sys.argv[2]))
    elif len(sys.argv) == 5:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
