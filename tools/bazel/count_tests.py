"""Counts the test cases of `bazel test` runs, from Bazel's own event stream.

Usage: count_tests.py FOLDER RUN..., where FOLDER has RUN.json (--build_event_json_file) and RUN.exit (Bazel's exit status), and
where something else failed the file `failures`, a line for each. RUN.cut: the time for this run was over before all had run.
The event stream names exactly the test logs of this run; the bazel-testlogs folder also has those of earlier ones.
"""

import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

# Bazel: all is well; or there was no test to run.
QUIET_EXITS = (0, 4)


def cases(path):
    """(passed, names of the failed) in one test.xml, or None if it cannot be read."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    passed, failed = 0, []
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is None and case.get("status") != "notrun" and case.get("result") != "skipped":
            passed += 1
    return passed, failed


def count(events_path, is_cut):
    """(passed, names of the failed, how many targets were left out) of one run of Bazel."""
    results = {}  # (label, run, shard) -> the last attempt
    without_result = {}  # label -> why
    try:
        with open(events_path, encoding="utf-8") as lines:
            events = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        return 0, ["no events from bazel: %s" % error], 0
    for event in events:
        kind = event.get("id", {})
        if "testResult" in event:
            key = kind["testResult"]
            name = (key["label"], key.get("run", 0), key.get("shard", 0))
            attempt = key.get("attempt", 0)
            if name not in results or results[name][0] <= attempt:
                results[name] = (attempt, event["testResult"])
        elif "targetCompleted" in kind and not event.get("completed", {}).get("success"):
            without_result[kind["targetCompleted"]["label"]] = "does not build"
        elif "unconfiguredLabel" in kind and "aborted" in event:
            without_result[kind["unconfiguredLabel"]["label"]] = "cannot be analyzed"
        elif "pattern" in kind and "aborted" in event:
            without_result[" ".join(kind["pattern"].get("pattern", []))] = "cannot be loaded"

    passed, failed = 0, []
    tested = set()
    for (label, _, _), (_, result) in sorted(results.items()):
        tested.add(label)
        found = None
        for output in result.get("testActionOutput", []):
            if output.get("name") == "test.xml":
                found = cases(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path))
        ok = result.get("status") in ("PASSED", "FLAKY")
        if is_cut and result.get("status") not in ("PASSED", "FLAKY", "FAILED", "TIMEOUT"):
            tested.discard(label)
            without_result[label] = "was interrupted"
            continue
        passed_here, failed_here = found or (1 if ok else 0, [])
        if ok:
            failed_here = []
        elif not failed_here:
            failed_here = [result.get("status", "no status").lower().replace("_", " ")]
        passed += passed_here
        failed += ["%s %s" % (label, name) for name in failed_here]
    missing = [item for item in sorted(without_result.items()) if item[0] not in tested]
    if is_cut:
        return passed, failed, len(missing)
    return passed, failed + ["%s %s" % item for item in missing], 0


def main():
    folder, runs = sys.argv[1], sys.argv[2:]
    passed, failed = 0, []
    failures = os.path.join(folder, "failures")
    if os.path.exists(failures):
        with open(failures, encoding="utf-8") as lines:
            failed += [line.strip() for line in lines]
    for run in runs:
        is_cut = os.path.exists(os.path.join(folder, run + ".cut"))
        passed_here, failed_here, left_out = count(os.path.join(folder, run + ".json"), is_cut)
        with open(os.path.join(folder, run + ".exit"), encoding="utf-8") as status:
            code = int(status.read())
        if is_cut:
            print("left out: %d targets of the %s tests, since the time was over" % (left_out, run))
        elif code not in QUIET_EXITS and not failed_here:
            failed_here = ["bazel ended with status %d" % code]
        passed += passed_here
        failed += ["%s%s" % ("" if run == "plain" else run + ": ", name) for name in failed_here]
    for name in failed:
        print("FAILED " + name)
    print("%d passed, %d failed" % (passed, len(failed)))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
