#!/bin/bash
# tools/quickstart where node 0 fails, with a cadre and a bazel that only do as if: node 1 ends with it.
set -euo pipefail
tree=$(mktemp -d -p "$TEST_TMPDIR")
mkdir -p "$tree/tools" "$tree/bin" "$tree/bazel-bin/launcher"
cp tools/quickstart "$tree/tools/"
printf '#!/bin/sh\n' | tee "$tree/tools/install_packages" > "$tree/bin/bazel"
mkfifo "$tree/second"
cat > "$tree/bazel-bin/launcher/cadre" << EOF
#!/bin/bash
case "\$*" in
  *"--node-name node1"*) echo \$\$ > "$tree/second"; exec sleep 1000 ;;
  *) read -r second < "$tree/second"; echo "\$second" > "$tree/pid"; exit 3 ;;
esac
EOF
chmod +x "$tree/tools/install_packages" "$tree/bin/bazel" "$tree/bazel-bin/launcher/cadre"

status=0
PATH=$tree/bin:$PATH "$tree/tools/quickstart" || status=$?
((status == 3)) || { echo "status $status, and not node 0's" >&2; exit 1; }
second=$(< "$tree/pid")
if kill -9 "$second" 2> /dev/null; then
  echo "node 1 lives on" >&2
  exit 1
fi
