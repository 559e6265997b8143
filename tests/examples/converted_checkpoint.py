"""What docs/checkpoints.md shows, with a network whose parts have the names that are in the archive.

    converted_checkpoint.py PAGE FROM TO PYTHONS    takes FROM, adds 1 to fc.bias, writes TO and, by torch.save(), PYTHONS
    converted_checkpoint.py PAGE FROM TO            fails where the parameters of the two differ
"""
import re
import sys

import torch

with open(sys.argv[1], encoding="utf-8") as page:
    exec(re.search(r"```python\n(import torch\n.*?)```", page.read(), re.DOTALL)[1])  # pylint: disable=exec-used

state = from_cpp(sys.argv[2])
if len(sys.argv) == 4:
    other = from_cpp(sys.argv[3])
    assert state.keys() == other.keys() and state
    for name, tensor in state.items():
        assert "running" in name or "num_batches" in name or torch.equal(tensor, other[name]), name
    print("%d tensors, the same parameters" % len(state))
    sys.exit()

network = torch.nn.Module()
for name, tensor in state.items():
    *folders, last = name.split(".")
    at = network
    for folder in folders:
        if folder not in at._modules:
            at.add_module(folder, torch.nn.Module())
        at = at._modules[folder]
    at.register_buffer(last, tensor)
network.fc.bias += 1
to_cpp(network, sys.argv[3])
torch.save(network.state_dict(), sys.argv[4])
