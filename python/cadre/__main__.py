"""python -m cadre ...: the command, where its folder is not on PATH."""
import os
import sys
import sysconfig


def main() -> None:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for scheme in sysconfig.get_scheme_names():
        for base in ("purelib", "platlib"):  # which installation this module belongs to
            if sysconfig.get_path(base, scheme) == here:
                command = os.path.join(sysconfig.get_path("scripts", scheme), "cadre")
                if os.access(command, os.X_OK):
                    os.execv(command, [command] + sys.argv[1:])
    sys.exit("cadre: no command beside %s; expected what `pip install cadre-train` puts there" % here)


main()
